"""Names and arguments that scripts written for Ray Tune have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.errors import LockstepError
from lockstep.train import RunConfig, ScalingConfig, get_context
from lockstep.train.trainer import DataParallelTrainer


def trial(config: dict[str, Any]) -> None:
    for step in range(3):
        tune.report({"loss": config["x"] / (step + 1)})


def test_older_arguments_of_a_run_config(tmp_path: Path) -> None:
    assert RunConfig(local_dir=tmp_path).storage_path == tmp_path
    assert RunConfig(verbose=3).verbose == 2
    assert RunConfig(log_to_file=True).log_to_file is True
    with pytest.raises(ValueError, match="older name of storage_path"):
        RunConfig(local_dir="a", storage_path="b")
    with pytest.warns(UserWarning, match=r"progress_reporter=.*does nothing"):
        RunConfig(progress_reporter=tune.CLIReporter(metric_columns=["loss"]))
    with pytest.warns(UserWarning, match=r"sync_config=.*does nothing"):
        RunConfig(sync_config=tune.SyncConfig(sync_period=10))
    with pytest.warns(UserWarning, match=r"log_to_file='a.log'.*logs directory"):
        RunConfig(log_to_file="a.log")


def test_a_search_for_a_number_of_workers_belongs_to_a_tuner() -> None:
    domains: list[Any] = [tune.grid_search([1, 2]), tune.randint(1, 3)]
    for domain in domains:
        config = ScalingConfig(num_workers=domain)
        with pytest.raises(TypeError, match=r"contains a search space; give .*'scaling_config'"):
            DataParallelTrainer(lambda: None, scaling_config=config).fit()


_GRID: Any = tune.grid_search([1, 2])
_TWO: Any = tune.randint(2, 3)
_QUARTER: Any = tune.sample_from(lambda spec: spec.scaling_config.num_workers / 4)


@pytest.mark.parametrize(
    ("searched", "found"),
    [
        (ScalingConfig(_GRID, resources_per_worker={"CPU": _QUARTER}), [[1, 0.25], [2, 0.5]]),
        (tune.grid_search([ScalingConfig(_TWO), ScalingConfig(1)]), [[2, 1], [1, 1]]),
        (tune.choice([ScalingConfig(_TWO)]), [[2, 1]]),
    ],
)
def test_a_scaling_config_that_is_searched(searched: Any, found: Any, tmp_path: Path) -> None:
    def loop() -> None:
        context = get_context()
        cpus = context.get_trial_resources()["CPU"]
        tune.report({"found": [context.get_world_size(), cpus]})

    grid = tune.Tuner(
        DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=4)),
        param_space={"scaling_config": searched},
        run_config=RunConfig(storage_path=tmp_path, name="e", verbose=0),
    ).fit()
    assert [result.metrics["found"] for result in grid] == found
    again = tune.Tuner.restore(tmp_path / "e").fit()
    assert [result.metrics["found"] for result in again] == found


def test_registered_trainables(tmp_path: Path) -> None:
    tune.register_trainable("mine", trial)
    resources = {"cpu": 1}
    analysis = tune.run(
        "mine", config={"x": 1}, resources_per_trial=resources, storage_path=tmp_path, verbose=0
    )
    assert analysis.trials[0].last_result["loss"] == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match=r"Tuner\('other'\): no trainable .*mine"):
        tune.Tuner("other")


def test_trials_of_an_analysis(tmp_path: Path) -> None:
    space = {"x": tune.grid_search([1, 2]), "constant": 3}
    analysis = tune.run(
        trial, config=space, metric="loss", mode="min", storage_path=tmp_path, name="e", verbose=3
    )
    best = analysis.best_trial
    assert best.trial_id.endswith("_00000")
    assert best.status == "TERMINATED"
    assert best.config == {"x": 1, "constant": 3}
    assert best.evaluated_params == {"x": 1}
    assert best.last_result["loss"] == pytest.approx(1 / 3) == best.metrics["loss"]
    assert best.metric_analysis["loss"]["max"] == 1
    assert best.metric_analysis["loss"]["last"] == pytest.approx(1 / 3)
    assert Path(best.logdir) == Path(best.local_path) == Path(best.path)
    assert Path(best.path).parent == tmp_path / "e"
    assert best.checkpoint is None
    assert "TERMINATED" in repr(best)
    read = tune.ExperimentAnalysis(tmp_path / "e")
    assert read.best_config == {"x": 1, "constant": 3}
    assert [one.trial_id for one in read.trials] == [one.trial_id for one in analysis.trials]


def test_searchers_and_schedulers_by_name(tmp_path: Path) -> None:
    options: dict[str, Any] = {"metric": "loss", "mode": "min", "verbose": 0}
    space = {"x": tune.uniform(0, 1)}
    analysis = tune.run(
        trial,
        config=space,
        num_samples=2,
        search_alg="random",
        scheduler="asha",
        storage_path=tmp_path,
        **options,
    )
    assert len(analysis.trials) == 2
    with pytest.raises(ValueError, match="create_scheduler"):
        tune.run(trial, config=space, scheduler="none of them", **options)


def test_resuming_with_an_older_script(tmp_path: Path) -> None:
    def fails_once(config: dict[str, Any]) -> None:
        marker = tmp_path / f"ran_{config['x']}"
        begun = marker.exists()
        marker.touch()
        if config["x"] == 1 and not begun:
            raise ValueError("on purpose")
        tune.report({"loss": config["x"]})

    with pytest.raises(ValueError, match=r"resume=True\) needs name"):
        tune.run(fails_once, resume=True)
    options: dict[str, Any] = {
        "config": {"x": tune.grid_search([1, 2])},
        "name": "e",
        "storage_path": tmp_path,
        "verbose": 0,
        "max_concurrent_trials": 1,
    }
    with pytest.raises(tune.TuneError, match="1 of 1 trials failed"):
        tune.run(fails_once, fail_fast=True, **options)
    kinds = tune.ResumeConfig.ResumeType
    resume = tune.ResumeConfig(errored=kinds.RESTART)
    analysis = tune.run(fails_once, resume=True, resume_config=resume, **options)
    assert sorted(one.last_result["loss"] for one in analysis.trials) == [1, 2]
    with pytest.raises(ValueError, match="are not run again"):
        tune.ResumeConfig(finished=kinds.RESTART)
    with pytest.raises(ValueError, match="use RESUME or SKIP"):
        tune.ResumeConfig(unfinished=kinds.RESTART)


def test_the_working_directory_of_an_older_script(tmp_path: Path) -> None:
    def writes(config: dict[str, Any]) -> None:
        Path("here").touch()
        tune.report({"trial": tune.get_trial_id()})

    analysis = tune.run(writes, chdir_to_trial_dir=True, storage_path=tmp_path, verbose=0)
    assert Path(analysis.trials[0].path, "here").exists()
    assert analysis.trials[0].last_result["trial"] == analysis.trials[0].trial_id


class Steps(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.forgets, self.total = config.get("forgets", False), 0

    def step(self) -> dict[str, Any]:
        self.total += 1
        return {"training_iteration": self.total} if self.forgets else {"total": self.total}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"total": self.total}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.total = 0 if self.forgets else checkpoint["total"]


def test_helpers_of_training_code() -> None:
    from lockstep.tune.syncer import SyncConfig
    from lockstep.tune.utils import flatten_dict, validate_save_restore

    assert SyncConfig is tune.SyncConfig
    assert flatten_dict({"a": {"b": 1}, "c/d": 2}, delimiter=".") == {"a.b": 1, "c/d": 2}
    assert validate_save_restore(Steps)
    with pytest.raises(ValueError, match="after restoring is number 1"):
        validate_save_restore(Steps, {"forgets": True})


def test_waiting_for_a_gpu_where_nothing_tells_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lockstep.tune.utils import wait_for_gpu

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"wait_for_gpu\(3\): there is no nvidia-smi here"):
        wait_for_gpu(3)


def test_what_an_error_may_be_called() -> None:
    assert issubclass(LockstepError, tune.TuneError)


def yields(config: dict[str, Any]) -> Any:
    yield {"loss": config["x"]}
    yield {"loss": config["x"] / 2}


def test_a_function_that_yields_reports_each_dict(tmp_path: Path) -> None:
    analysis = tune.run(yields, config={"x": 4}, storage_path=tmp_path, verbose=0)
    assert analysis.trials[0].last_result["loss"] == 2
    assert analysis.trials[0].last_result["training_iteration"] == 2


def endless(config: dict[str, Any]) -> None:
    for step in range(1000):
        tune.report({"inner": {"n": step}, "good": step >= 5})


@pytest.mark.parametrize(
    ("stop", "reports"),
    [({"inner": {"n": 3}}, 4), ({"good": True}, 6), ({"done": True, "inner/n": 2}, 3)],
)
def test_stop_conditions_of_nested_dicts_and_truth_values(
    stop: Any, reports: int, tmp_path: Path
) -> None:
    analysis = tune.run(endless, stop=stop, storage_path=tmp_path, verbose=0)
    assert analysis.trials[0].last_result["training_iteration"] == reports


def test_a_metric_without_a_mode(tmp_path: Path) -> None:
    config = RunConfig(storage_path=tmp_path, verbose=0)
    tuner = tune.Tuner(
        trial,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="loss"),
        run_config=config,
    )
    grid = tuner.fit()
    assert grid.get_best_result(mode="min").config == {"x": 1}
    with pytest.raises(ValueError, match="give mode="):
        grid.get_best_result()
    needs = tune.TuneConfig(metric="loss", scheduler=tune.schedulers.ASHAScheduler())
    with pytest.raises(ValueError, match="give metric and mode"):
        tune.Tuner(trial, param_space={"x": 1}, tune_config=needs, run_config=config).fit()


@pytest.mark.parametrize("mode", ["most", {}, [[]], ["min", "most"], []])
def test_a_mode_that_is_none(mode: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"TuneConfig(mode={mode!r}): expected 'min'")):
        tune.TuneConfig(mode=mode)


def test_points_beyond_a_grid(tmp_path: Path) -> None:
    searcher = tune.search.BasicVariantGenerator(points_to_evaluate=[{"x": 9}])
    with pytest.warns(UserWarning, match="'x'=9, which is none of the values"):
        analysis = tune.run(
            trial,
            config={"x": tune.grid_search([1, 2])},
            search_alg=searcher,
            num_samples=2,
            storage_path=tmp_path,
            verbose=0,
        )
    assert [one.config["x"] for one in analysis.trials] == [9, 1, 2]


def test_the_best_of_a_single_trial_needs_no_metric(tmp_path: Path) -> None:
    config = RunConfig(storage_path=tmp_path, verbose=0)
    grid = tune.Tuner(trial, param_space={"x": 3}, run_config=config).fit()
    assert grid.get_best_result().config == {"x": 3}


def sometimes_nan(config: dict[str, Any]) -> None:
    for value in config["losses"]:
        checkpoint = tune.Checkpoint.from_dict({"loss": value})
        tune.report({"loss": value}, checkpoint=checkpoint)


def test_metrics_that_are_nan(tmp_path: Path) -> None:
    nan = float("nan")
    analysis = tune.run(
        sometimes_nan,
        config={"losses": tune.grid_search([[nan, nan], [1.0, nan], [3.0, 2.0]])},
        metric="loss",
        mode="min",
        storage_path=tmp_path,
        verbose=0,
    )
    assert analysis.best_config["losses"] == [3.0, 2.0]
    best = analysis.get_best_trial(scope="all")
    assert best is not None
    assert best.config["losses"] == [1.0, nan] or best.config["losses"][0] == 1.0
    paths = analysis.get_trial_checkpoints_paths(analysis.best_trial)
    assert [value for _, value in paths] == [3.0, 2.0]
    assert all(Path(path).is_dir() for path, _ in paths)
    assert len(analysis.grid.get_dataframe(filter_metric="loss")) == 3
    best_rows = analysis.grid.get_dataframe(filter_metric="loss", filter_mode="max")
    assert list(best_rows["loss"])[1:] == [1.0, 3.0]
    with pytest.warns(UserWarning, match="none of 3 trial"):
        assert analysis.get_best_config("other", "min") is None
    with pytest.warns(UserWarning, match="none of 3 trial"):
        assert analysis.get_best_logdir("other", "min") is None


def test_constants_of_trials(tmp_path: Path) -> None:
    from lockstep.tune.experiment.trial import Trial

    assert (Trial.PENDING, Trial.RUNNING, Trial.PAUSED) == ("PENDING", "RUNNING", "PAUSED")
    seen: list[tuple[bool, str]] = []

    class Watch(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            seen.append((trial.status == trial.TERMINATED, trial.local_dir))

    analysis = tune.run(
        trial, config={"x": 1}, storage_path=tmp_path, name="e", verbose=0, callbacks=[Watch()]
    )
    [one] = analysis.trials
    assert one.status == Trial.TERMINATED == one.TERMINATED
    assert one.is_finished()
    assert Path(one.local_dir) == tmp_path / "e"
    assert [path for _, path in seen] == [one.local_dir]


def reads_beside_the_script(config: dict[str, Any]) -> None:
    import os

    origin = os.environ["TUNE_ORIG_WORKING_DIR"]
    tune.report({"same": origin == os.getcwd(), "found": Path(origin, "data.txt").read_text()})


def test_the_original_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.txt").write_text("here")
    monkeypatch.chdir(tmp_path)
    analysis = tune.run(
        reads_beside_the_script, storage_path=tmp_path, verbose=0, chdir_to_trial_dir=True
    )
    assert analysis.trials[0].last_result["found"] == "here"
    assert not analysis.trials[0].last_result["same"]


def test_an_upload_directory(tmp_path: Path) -> None:
    config = RunConfig(
        local_dir="cache", sync_config=tune.SyncConfig(upload_dir=str(tmp_path), syncer=None)
    )
    assert config.storage_path == str(tmp_path)
    with pytest.raises(ValueError, match=r"upload_dir=.*older name of storage_path"):
        RunConfig(storage_path="a", sync_config=tune.SyncConfig(upload_dir="b"))


def test_experiments(tmp_path: Path) -> None:
    from lockstep.tune.experiment import Experiment

    options: dict[str, Any] = {"storage_path": tmp_path, "verbose": 0}
    one = Experiment("one", trial, config={"x": tune.grid_search([1, 2])}, stop={"loss": 1e9})
    analysis = tune.run(one, **options)
    assert Path(analysis.experiment_path) == tmp_path / "one"
    assert len(analysis.trials) == 2
    specs = {"a": {"run": trial, "config": {"x": 1}}, "b": {"run": trial, "config": {"x": 2}}}
    trials = tune.run_experiments(specs, **options)
    assert [each.config["x"] for each in trials] == [1, 2]
    assert [Path(each.local_dir).name for each in trials] == ["a", "b"]
    with pytest.raises(ValueError, match="needs 'run'"):
        Experiment.from_json("c", {"config": {}})
    with pytest.raises(TypeError, match="other"):
        tune.run(Experiment("d", trial, other=1), **options)


def test_custom_resources_have_no_effect(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="'slots': 3.*has no effect"):
        bound = tune.with_resources(trial, {"cpu": 1, "slots": 3})
    assert tune.Tuner(bound, param_space={"x": 1}) is not None


def test_paths_of_names() -> None:
    from lockstep.tune import result
    from lockstep.tune.trainable import with_parameters

    assert with_parameters is tune.with_parameters
    assert (result.TRAINING_ITERATION, result.DONE) == ("training_iteration", "done")


def test_the_state_of_a_searcher(tmp_path: Path) -> None:
    from lockstep.tune.search.optuna import OptunaSearch

    space = {"x": tune.uniform(0, 1), "inner": {"n": tune.randint(1, 9)}, "constant": 1}

    def begun() -> OptunaSearch:
        searcher = OptunaSearch(seed=1)
        searcher.set_search_properties("loss", "min", space)
        return searcher

    first = begun()
    for number in range(12):
        config = first.suggest(str(number))
        assert isinstance(config, dict)
        first.on_trial_complete(str(number), {"loss": config["x"]})
    first.save(tmp_path / "state.pkl")
    second = begun()
    second.restore(tmp_path / "state.pkl")
    assert second.suggest("12") == first.suggest("12")
    found = OptunaSearch.convert_search_space(space)
    assert (found["inner/n"].low, found["inner/n"].high) == (1, 8)
    assert list(found) == ["x", "inner/n"]
