"""Names and arguments that scripts written for Ray Tune have."""

from __future__ import annotations

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
    analysis = tune.run("mine", config={"x": 1}, storage_path=tmp_path, verbose=0)
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
