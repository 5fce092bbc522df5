"""Trials in real processes: what Tuner.fit does, and what it returns."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.callback import TrialSnapshot
from lockstep.errors import LockstepError
from lockstep.train import (
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
    UserCallback,
    get_context,
    get_dataset_shard,
)
from lockstep.train.driver.controller import Controller
from lockstep.tune import Callback, ResultGrid, TuneConfig, Tuner
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.search import Searcher
from tests.faulty import Faults, faulty_filesystem
from tests.integration.tune.tuning import fit, note, notes, tuner


def square(config: dict[str, Any]) -> None:
    for i in range(config.get("steps", 2)):
        tune.report({"loss": config["x"] ** 2 + i, "x": config["x"]})


def count(config: dict[str, Any]) -> None:
    for i in range(config.get("steps", 5)):
        tune.report({"score": i + config.get("x", 0)})


def counting(config: dict[str, Any]) -> None:
    """Continues from its checkpoint."""
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["i"] + 1 if checkpoint else 0
    for i in range(start, 4):
        tune.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))


def endless(config: dict[str, Any]) -> None:
    while True:
        tune.report({"score": 1.0})


# ---------------------------------------------------------------------------------- the basics


def test_a_grid_of_a_function() -> None:
    grid = fit(square, {"x": tune.grid_search([3, 1, 2])}, metric="loss", mode="min")
    assert isinstance(grid, ResultGrid)
    assert [result.config for result in grid] == [{"x": 3}, {"x": 1}, {"x": 2}]
    assert [result.metrics["loss"] for result in grid] == [10, 2, 5]
    best = grid.get_best_result()
    assert best.config == {"x": 1}
    assert best.state == "finished"
    assert (len(grid), grid.num_errors, grid.num_terminated) == (3, 0, 3)
    assert len(best.metrics_dataframe) == 2


def test_the_tuning_section_of_the_pages() -> None:
    from lockstep import tune
    from lockstep.air import ScalingConfig, session
    from lockstep.train.torch import TorchTrainer
    from lockstep.tune.tuner import TuneConfig, Tuner

    def train_func(config: dict[str, Any]) -> None:
        # In this example, nothing is expected to change over epochs,
        # and the output metric is equivalent to the input value.
        for _ in range(config["num_epochs"]):
            session.report(dict(output=config["input"]))  # noqa: C408

    trainer = TorchTrainer(
        train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=0)
    )
    tuner = Tuner(
        trainer,
        param_space={
            "train_loop_config": {
                "num_epochs": 2,
                "input": tune.grid_search([1, 2, 3]),
            }
        },
        tune_config=TuneConfig(num_samples=5, metric="output", mode="max"),
    )
    result_grid = tuner.fit()
    assert result_grid.get_best_result().metrics["output"] == 3
    assert len(result_grid) == 15
    assert [r.metrics["output"] for r in result_grid] == [1, 2, 3] * 5


def test_trials_of_a_trainer_use_the_fork_server_of_its_runs() -> None:
    def train_func(config: dict[str, Any]) -> None:
        tune.report({"server": os.getppid()})

    def trainer(**variables: str) -> DataParallelTrainer:
        environment = {"env_vars": variables}
        return DataParallelTrainer(
            train_func, run_config=RunConfig(verbose=0, worker_runtime_env=environment)
        )

    servers = {trainer(MINE=str(run)).fit().metrics["server"] for run in range(3)}
    grid = Tuner(
        trainer(),
        param_space={"train_loop_config": {"x": tune.grid_search([1, 2])}},
        run_config=RunConfig(verbose=0),
    ).fit()
    assert {result.metrics["server"] for result in grid} | servers == servers
    assert len(servers) == 1


def test_identity_of_trials() -> None:
    def who(config: dict[str, Any]) -> None:
        context = tune.get_context()
        tune.report(
            {
                "id": context.get_trial_id(),
                "name": context.get_trial_name(),
                "dir": context.get_trial_dir(),
                "experiment": context.get_experiment_name(),
                "resources": context.get_trial_resources(),
            }
        )

    grid = fit(who, {"lr": tune.grid_search([0.1, 0.2])}, run={"name": "ids"})
    ids = [result.metrics["id"] for result in grid]
    prefix = ids[0].split("_")[0]
    assert ids == [f"{prefix}_00000", f"{prefix}_00001"]
    for index, result in enumerate(grid):
        assert result.metrics["trial_id"] == ids[index]
        assert result.metrics["name"] == f"who_{ids[index]}"
        assert result.metrics["dir"] == result.path
        assert result.metrics["experiment"] == "ids" == Path(grid.experiment_path).name
        assert result.metrics["resources"] == {"CPU": 1}
        tag = f"{index}_lr=0.{index + 1}000"
        assert result.metrics["experiment_tag"] == tag
        assert Path(result.path).name.startswith(f"who_{ids[index]}_{tag}_")
        files = set(os.listdir(result.path))
        assert {"journal.jsonl", "params.json", "progress.csv", "result.json"} <= files
        assert json.loads(Path(result.path, "params.json").read_text()) == result.config
    assert Result.from_path(grid[0].path).config == {"lr": 0.1}


def test_names_of_ones_own() -> None:
    def name(trial: Any) -> str:
        return f"t{trial.config['x']}"

    grid = fit(
        count,
        {"x": tune.grid_search([1, 1])},
        trial_name_creator=lambda trial: f"named-{trial.config['x']}",
        trial_dirname_creator=name,
    )
    assert Path(grid[0].path).name == "t1"
    assert Path(grid[1].path).name == f"t1_{grid[1].metrics['trial_id']}"


def test_what_a_function_returns_is_its_last_report() -> None:
    grid = fit(lambda config: {"loss": config["x"]}, {"x": tune.grid_search([1, 2])})
    assert [result.metrics["loss"] for result in grid] == [1, 2]
    assert Path(grid[0].path).name.startswith("lambda_")


def test_the_same_seed_gives_the_same_configs() -> None:
    from lockstep.tune.search import BasicVariantGenerator

    def configs(seed: int) -> list[Any]:
        searcher = BasicVariantGenerator(random_state=seed)
        grid = fit(square, {"x": tune.uniform(0, 1)}, num_samples=3, search_alg=searcher)
        return [result.config for result in grid]

    assert configs(1) == configs(1) != configs(2)


def test_objects_in_a_space_reach_the_function() -> None:
    def call(config: dict[str, Any]) -> None:
        tune.report({"value": config["function"](4.0), "kind": type(config["pair"]).__name__})

    space = {"function": tune.grid_search([math.sqrt, math.floor]), "pair": (1, 2)}
    grid = fit(call, space)
    assert [result.metrics["value"] for result in grid] == [2.0, 4]
    assert grid[0].metrics["kind"] == "tuple"


def test_a_trainable_class() -> None:
    class Counter(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.value = config["start"]

        def step(self) -> dict[str, Any]:
            self.value += 1
            return {"value": self.value, "done": self.value >= 5}

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {"value": self.value}

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.value = checkpoint["value"]

    grid = fit(
        Counter,
        {"start": tune.grid_search([0, 3])},
        run={"checkpoint_config": CheckpointConfig(checkpoint_frequency=2)},
    )
    assert [result.metrics["training_iteration"] for result in grid] == [5, 2]
    assert grid[0].checkpoint is not None
    assert grid[0].checkpoint.to_dict()["value"] == 4


def test_parameters_and_resources_of_a_function() -> None:
    def total(config: dict[str, Any], data: list[int]) -> None:
        tune.report(
            {
                "sum": sum(data) + config["x"],
                "threads": os.environ["OMP_NUM_THREADS"],
                "cpus": get_context().get_trial_resources()["CPU"],
            }
        )

    bound = tune.with_resources(tune.with_parameters(total, data=[1, 2]), {"cpu": 2})
    grid = fit(bound, {"x": 1})
    assert [grid[0].metrics[key] for key in ("sum", "threads", "cpus")] == [4, "2", 2]


def test_resources_that_depend_on_the_config() -> None:
    def cpus(config: dict[str, Any]) -> None:
        tune.report({"cpus": get_context().get_trial_resources()["CPU"]})

    bound = tune.with_resources(cpus, lambda config: {"cpu": config["n"]})
    grid = fit(bound, {"n": tune.grid_search([1, 2, 0.5, 0])})
    assert [result.metrics["cpus"] for result in grid] == [1, 2, 0.5, 0]


# -------------------------------------------------------------------------------- over a trainer


def test_a_space_reaches_every_argument_of_a_trainer() -> None:
    def loop(config: dict[str, Any]) -> None:
        for _ in range(9):
            tune.report({"world": get_context().get_world_size(), **config})

    trainer = DataParallelTrainer(
        loop,
        train_loop_config={"a": {"b": 1, "c": 2}, "d": 3},
        run_config=RunConfig(verbose=0, stop={"training_iteration": 5}),
    )
    grid = Tuner(
        trainer,
        param_space={
            "train_loop_config": {"a": {"b": tune.grid_search([10, 20])}},
            "scaling_config": tune.grid_search([ScalingConfig(2), {"num_workers": 1}]),
            "run_config": {"stop": {"training_iteration": 2}},
        },
    ).fit()
    assert [(r.metrics["world"], r.metrics["a"]["b"]) for r in grid] == [
        (2, 10),
        (2, 20),
        (1, 10),
        (1, 20),
    ]
    assert all(r.metrics["a"]["c"] == 2 and r.metrics["d"] == 3 for r in grid)
    assert all(r.metrics["training_iteration"] == 2 for r in grid)


def test_datasets_of_trials() -> None:
    import pandas as pd

    def loop(config: dict[str, Any]) -> None:
        rows = 0
        for name in ("train", "other"):
            for batch in get_dataset_shard(name).iter_batches(batch_size=4):
                rows += int(batch["x"].sum())
        tune.report({"sum": rows})

    frames = [pd.DataFrame({"x": [n] * 10}) for n in (1, 2)]
    trainer = DataParallelTrainer(
        loop,
        datasets={"train": frames[0], "other": pd.DataFrame({"x": [100]})},
        run_config=RunConfig(verbose=0),
    )
    grid = Tuner(trainer, param_space={"datasets": {"train": tune.grid_search(frames)}}).fit()
    assert [result.metrics["sum"] for result in grid] == [110, 120]


@pytest.mark.parametrize(
    ("space", "text"),
    [
        ({"lr": 1}, "hyperparameters go into 'train_loop_config'"),
        ({"run_config": {"name": "x"}}, "give it to Tuner"),
        ({"scaling_config": {"workers": 2}}, "expected a ScalingConfig or a dict"),
    ],
)
def test_what_does_not_belong_into_a_trainers_space(space: dict[str, Any], text: str) -> None:
    trainer = DataParallelTrainer(count, run_config=RunConfig(verbose=0))
    with pytest.raises(ValueError, match=text):
        Tuner(trainer, param_space=space).fit()


def test_gangs_that_do_not_fit_together_take_turns(tmp_path: Path) -> None:
    import lockstep

    def loop(config: dict[str, Any]) -> None:
        rank = get_context().get_world_rank()
        note(tmp_path, "events", f"in {time.monotonic()} {config['size']} {rank}")
        tune.report({"size": get_context().get_world_size()})
        note(tmp_path, "events", f"out {time.monotonic()} {config['size']} {rank}")

    lockstep.init(num_cpus=3)
    try:
        sizes = [2, 3, 1, 2, 2, 1, 5]
        grid = Tuner(
            DataParallelTrainer(loop, run_config=RunConfig(verbose=0)),
            param_space={
                "scaling_config": tune.grid_search([{"num_workers": n} for n in sizes]),
                "train_loop_config": {
                    "size": tune.sample_from(
                        lambda spec: spec.config["scaling_config"]["num_workers"]
                    )
                },
            },
        ).fit()
    finally:
        lockstep.shutdown()
    assert [result.metrics["size"] for result in grid] == sizes
    events = sorted(
        (float(when), kind, int(size))
        for kind, when, size, _ in (line.split() for line in notes(tmp_path, "events"))
    )
    running = most = 0
    for _, kind, size in events:
        running += 1 if kind == "in" else -1
        if size < 5:
            most = max(most, running)
    assert most <= 3


def test_an_elastic_trial_takes_what_there_is() -> None:
    import lockstep

    def loop() -> None:
        tune.report({"world": get_context().get_world_size()})

    lockstep.init(num_cpus=3)
    try:
        trainer = DataParallelTrainer(
            loop, scaling_config=ScalingConfig((1, 8)), run_config=RunConfig(verbose=0)
        )
        grid = Tuner(trainer, tune_config=TuneConfig(num_samples=2)).fit()
    finally:
        lockstep.shutdown()
    assert [result.metrics["world"] for result in grid] == [3, 3]


# ---------------------------------------------------------------------------- stopping and failing


def test_stop_conditions() -> None:
    grid = fit(endless, num_samples=2, run={"stop": {"training_iteration": 3}})
    assert [r.metrics["training_iteration"] for r in grid] == [3, 3]
    assert [r.state for r in grid] == ["finished"] * 2
    grid = fit(endless, run={"stop": lambda trial_id, row: row["training_iteration"] >= 2})
    assert grid[0].metrics["training_iteration"] == 2


def test_a_stopper_ends_everything() -> None:
    from lockstep.tune.stopper import Stopper

    class After(Stopper):
        seen = 0

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            self.seen += 1
            return False

        def stop_all(self) -> bool:
            return self.seen >= 5

    grid = fit(endless, num_samples=-1, max_concurrent_trials=2, run={"stop": After()})
    assert 1 <= len(grid) <= 2
    assert grid.num_errors == 0
    assert sum(r.metrics["training_iteration"] for r in grid) <= 7


def test_a_budget_ends_functions_that_never_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(config: dict[str, Any]) -> None:
        if config["report"]:
            while True:
                tune.report({"a": 1})
        time.sleep(1e6)

    monkeypatch.setenv("LOCKSTEP_STOP_GRACE_S", "0.2")
    together = tune.with_resources(silent, {"cpu": 0.5})
    grid = fit(together, {"report": tune.grid_search([True, False])}, time_budget_s=0.5)
    assert (grid.num_terminated, grid.num_errors) == (2, 0)


def test_as_many_as_there_is_time_for() -> None:
    for budget in (1, 4, 16):  # on a busy machine a second may be nothing
        grid = fit(square, {"x": tune.uniform(0, 1)}, num_samples=-1, time_budget_s=budget)
        if len(grid) > 2:
            break
    assert len(grid) > 2
    assert grid.num_errors == 0
    with pytest.raises(ValueError, match="would never end"):
        fit(square, {"x": 1}, num_samples=-1)


def test_a_decision_reaches_all_ranks_at_the_same_report(tmp_path: Path) -> None:
    class StopAtThree(TrialScheduler):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
            return self.STOP if result["training_iteration"] == 3 else self.CONTINUE

    def loop() -> None:
        rank = get_context().get_world_rank()
        for i in range(10**6):
            note(tmp_path, f"rank_{rank}", str(i + 1))
            tune.report({"i": i})

    trainer = DataParallelTrainer(
        loop, scaling_config=ScalingConfig(num_workers=3), run_config=RunConfig(verbose=0)
    )
    grid = Tuner(trainer, tune_config=TuneConfig(scheduler=StopAtThree())).fit()
    assert grid[0].metrics["training_iteration"] == 3
    assert grid[0].state == "finished"
    assert [notes(tmp_path, f"rank_{rank}") for rank in range(3)] == [["1", "2", "3"]] * 3


def test_a_failing_trial_is_a_row_with_its_error() -> None:
    def some(config: dict[str, Any]) -> None:
        tune.report({"loss": config["x"]})
        if config["x"] == 2:
            raise ValueError("two is too much")
        if config["x"] == 3:
            os._exit(7)

    grid = fit(some, {"x": tune.grid_search([1, 2, 3, 4])}, metric="loss", mode="max")
    assert (len(grid), grid.num_errors, grid.num_terminated) == (4, 2, 2)
    assert isinstance(grid[1].error, ValueError)
    assert "two is too much" in str(grid[1].error)
    assert "code 7" in str(grid[2].error)
    assert [type(error).__name__ for error in grid.errors] == ["ValueError", "WorkerDiedError"]
    assert grid[1].metrics["loss"] == 2  # what it had reported
    assert grid.get_best_result().config == {"x": 4}


def test_retries_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    def flaky(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["i"] + 1 if checkpoint else 0
        for i in range(start, 4):
            note(tmp_path, config["name"], str(i))
            tune.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))
            if i == 1 and len(notes(tmp_path, config["name"])) == 2:
                raise RuntimeError("once")

    grid = fit(flaky, {"name": tune.grid_search(["a", "b"])}, max_failures=1)
    assert grid.num_errors == 0
    assert [notes(tmp_path, name) for name in "ab"] == [["0", "1", "2", "3"]] * 2
    assert [result.metrics["training_iteration"] for result in grid] == [4, 4]


def test_fail_fast(tmp_path: Path) -> None:
    def fail(config: dict[str, Any]) -> None:
        note(tmp_path, "ran", str(config["x"]))
        tune.report({"a": 1})
        if config["x"] == 0:
            raise ValueError("at once")
        time.sleep(1e6)

    space = {"x": tune.grid_search(list(range(20)))}
    grid = fit(fail, space, fail_fast=True, max_concurrent_trials=2)
    assert grid.num_errors == 1
    assert len(notes(tmp_path, "ran")) <= 3
    with pytest.raises(ValueError, match="at once"):
        fit(fail, space, fail_fast="raise")


def test_fail_fast_lets_a_trial_that_is_done_finish_its_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage stalls under the first trial; the second fails when the first has left."""
    faults = Faults(tmp_path / "faults")
    faults.add("move", kind="stall", path="x=0")

    real_interrupt = Controller.interrupt

    def interrupt(self: Controller, **how: Any) -> None:
        real_interrupt(self, **how)
        self._loop.call_soon(faults.clear)  # after the interrupt itself, which waits there, too

    monkeypatch.setattr(Controller, "interrupt", interrupt)

    def fail(config: dict[str, Any]) -> None:
        if config["x"] == 0:
            tune.report({"a": 1})
            note(tmp_path, "pid", str(os.getpid()))
            return
        while not notes(tmp_path, "pid"):
            time.sleep(0.005)
        while os.path.exists(f"/proc/{notes(tmp_path, 'pid')[0]}"):
            time.sleep(0.005)
        raise ValueError("at last")

    storage = {
        "storage_path": "runs",
        "storage_filesystem": faulty_filesystem(tmp_path / "remote", faults),
    }
    grid = fit(fail, {"x": tune.grid_search([0, 1])}, fail_fast=True, run=storage)
    done, failed = grid
    assert (done.error, done.metrics["a"]) == (None, 1)
    assert "at last" in str(failed.error)


def test_what_cannot_be_sent_is_said_before_anything_runs() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(TypeError, match="lock"):
        fit(lambda config: lock.acquire())


def test_more_than_the_machine_has_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    big = tune.with_resources(count, {"cpu": 1000})
    grid = fit(big, num_samples=3)
    assert grid.num_terminated == 3
    assert capsys.readouterr().err.count("1000 CPU(s)") == 1


def test_errors_of_searchers_and_schedulers_end_the_experiment_and_say_whose() -> None:
    class Broken(Searcher):
        def suggest(self, trial_id: str) -> Any:
            if trial_id.endswith("2"):
                raise ArithmeticError("no idea")
            return {"x": 1}

    class Wrong(TrialScheduler):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
            raise ArithmeticError("cannot decide")

    class Listing(Searcher):
        def suggest(self, trial_id: str) -> Any:
            return [1, 2]

    class Again(TrialScheduler):
        def choose_trial_to_run(self, tune_controller: Any) -> Any:
            return tune_controller.get_trials()[0]

    with pytest.raises(LockstepError, match=r"searcher Listing raised TypeError: suggest\(\)"):
        fit(square, search_alg=Listing(), num_samples=5)
    with pytest.raises(LockstepError, match=r"scheduler Again raised ValueError: choose_trial"):
        fit(tune.with_resources(endless, {"cpu": 0.5}), scheduler=Again(), num_samples=2)
    with pytest.raises(LockstepError, match=r"searcher Broken raised ArithmeticError: no idea"):
        fit(square, search_alg=Broken(), num_samples=5)
    with pytest.raises(LockstepError, match=r"scheduler Wrong raised ArithmeticError: cannot"):
        fit(endless, scheduler=Wrong())


# ------------------------------------------------------------------------------ pausing, exploiting


class PauseOnce(TrialScheduler):
    """Pauses each trial at its second report; paused ones run when nothing is pending."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: list[str] = []

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> Any:
        if result["training_iteration"] == 2 and trial.trial_id not in self.paused:
            self.paused.append(trial.trial_id)
            return self.PAUSE
        return self.CONTINUE


def test_a_paused_trial_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    def steps(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["i"] + 1 if checkpoint else 0
        for i in range(start, 4):
            note(tmp_path, config["name"], str(i))
            tune.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))

    scheduler = PauseOnce()
    grid = fit(steps, {"name": tune.grid_search(["a", "b", "c"])}, scheduler=scheduler)
    assert len(scheduler.paused) == 3
    assert [notes(tmp_path, name) for name in "abc"] == [["0", "1", "2", "3"]] * 3
    assert [r.metrics["training_iteration"] for r in grid] == [4] * 3
    assert [r.state for r in grid] == ["finished"] * 3
    assert [len(r.metrics_dataframe) for r in grid] == [4] * 3


def test_a_paused_trial_without_a_checkpoint_starts_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = fit(count, num_samples=2, scheduler=PauseOnce())
    assert [len(r.metrics_dataframe) for r in grid] == [7, 7]
    assert capsys.readouterr().err.count("no checkpoint to resume from") == 1


def test_exploiting_another_trials_checkpoint(tmp_path: Path) -> None:
    marker = tmp_path / "exploited"

    class CopyTheBest(TrialScheduler):
        """Once the other has a checkpoint, the trial of x=1 continues with that, as x=30."""

        done = False

        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
            others = [t for t in tune_controller.get_live_trials() if t is not trial]
            donor = others[0] if others else None
            if self.done or trial.config["x"] != 1 or donor is None or donor.checkpoint is None:
                return self.CONTINUE
            self.done = True
            tune_controller.exploit(trial, {"x": 30}, donor.checkpoint)
            marker.touch()
            return self.PAUSE

    def steps(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        state = checkpoint.to_dict() if checkpoint else {"i": 0, "from": config["x"]}
        while state["i"] < 200 or config["x"] == 1:
            state["i"] += 1
            tune.report({**state, "x": config["x"]}, checkpoint=Checkpoint.from_dict(dict(state)))
            while config["x"] == 2 and not marker.exists():
                time.sleep(0.01)

    grid = fit(
        tune.with_resources(steps, {"cpu": 0.5}),
        {"x": tune.grid_search([1, 2])},
        scheduler=CopyTheBest(),
        run={"checkpoint_config": CheckpointConfig(num_to_keep=1)},
    )
    exploited = grid[0]
    assert exploited.metrics["from"] == 2
    assert exploited.metrics["x"] == 30
    assert exploited.metrics["i"] == 200
    assert exploited.config == {"x": 30}
    assert exploited.checkpoint is not None
    assert Path(exploited.checkpoint.path or "").parent == Path(exploited.path)
    assert exploited.metrics["training_iteration"] == 200


# ------------------------------------------------------------------------------------- callbacks


class Recorder(Callback):
    """Keeps the order of hooks, and whether two ever ran at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.sizes: list[int] = []
        self.setups: list[Any] = []
        self.inside = False

    def _note(self, hook: str, trial: str = "") -> None:
        assert not self.inside
        self.inside = True
        self.calls.append((hook, trial))
        self.inside = False

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        self.setups.append(num_samples)

    def on_trial_start(self, iteration: int, trials: Any, trial: TrialSnapshot, **_: Any) -> None:
        self._note("start", trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: Any, trial: TrialSnapshot, result: Any, **_: Any
    ) -> None:
        assert trial in trials
        assert trial.config == result["config"]
        self._note("result", trial.trial_id)

    def on_trial_complete(
        self, iteration: int, trials: Any, trial: TrialSnapshot, **_: Any
    ) -> None:
        self._note("complete", trial.trial_id)

    def on_trial_error(self, iteration: int, trials: Any, trial: TrialSnapshot, **_: Any) -> None:
        self._note("error", trial.trial_id)

    def on_experiment_end(self, trials: Sequence[TrialSnapshot], **_: Any) -> None:
        self._note("end")
        self.sizes.append(len(trials))


class Ranks(UserCallback):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        self.seen.append((run_context.trial_id, metrics[0]["score"]))


def test_one_set_of_callbacks_for_all_trials() -> None:
    recorder, ranks = Recorder(), Ranks()

    def some(config: dict[str, Any]) -> None:
        tune.report({"score": config["x"]})
        if config["x"] == 2:
            raise ValueError("no")

    grid = fit(some, {"x": tune.grid_search([1, 2, 3])}, run={"callbacks": [recorder, ranks]})
    ids = [result.metrics["trial_id"] for result in grid]
    assert recorder.setups == [3]
    assert recorder.sizes == [3]
    for trial_id, last in zip(ids, ["complete", "error", "complete"], strict=True):
        mine = [hook for hook, trial in recorder.calls if trial == trial_id]
        assert mine == ["start", "result", last]
    assert recorder.calls[-1] == ("end", "")
    assert sorted(ranks.seen) == sorted(zip(ids, [1, 2, 3], strict=True))


def test_a_paused_trial_has_one_end() -> None:
    recorder = Recorder()
    fit(count, num_samples=1, scheduler=PauseOnce(), run={"callbacks": [recorder]})
    hooks = [hook for hook, _ in recorder.calls]
    assert hooks.count("start") == 2
    assert hooks.count("complete") == 1
    assert hooks[-1] == "end"


def test_a_trial_that_is_ended_while_it_is_paused() -> None:
    class Halve(TrialScheduler):
        """Pauses all trials at their second report; when all are there, one continues."""

        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
            return self.PAUSE if result["training_iteration"] == 2 else self.CONTINUE

        def choose_trial_to_run(self, tune_controller: Any) -> Any:
            live = tune_controller.get_live_trials()
            if len(live) == 3 and all(trial.status == "PAUSED" for trial in live):
                for trial in live[1:]:
                    tune_controller.stop_trial(trial)
                return live[0]
            return next((trial for trial in live if trial.status == "PENDING"), None)

    recorder = Recorder()
    grid = fit(counting, num_samples=3, scheduler=Halve(), run={"callbacks": [recorder]})
    assert [len(result.metrics_dataframe) for result in grid] == [4, 2, 2]
    assert [result.state for result in grid] == ["finished"] * 3
    assert grid.num_terminated == 3
    ended = [trial for hook, trial in recorder.calls if hook == "complete"]
    assert sorted(ended) == [result.metrics["trial_id"] for result in grid]


# ---------------------------------------------------------------------------------- trainers inside


def test_a_trainer_inside_a_trial(tmp_path: Path) -> None:
    from lockstep.tune.integration.ray_train import TuneReportCallback

    where = str(tmp_path)

    def inner(config: dict[str, Any]) -> None:
        for i in range(3):
            tune.report(
                {"i": i, "world": get_context().get_world_size(), "x": config["x"]},
                checkpoint=Checkpoint.from_dict({"i": i}),
            )

    def trial(config: dict[str, Any]) -> None:
        DataParallelTrainer(
            inner,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=where, verbose=0, callbacks=[TuneReportCallback()]),
        ).fit()

    grid = fit(trial, {"x": tune.grid_search([1, 2])})
    assert not grid.errors
    assert [(r.metrics["i"], r.metrics["world"], r.metrics["x"]) for r in grid] == [
        (2, 2, 1),
        (2, 2, 2),
    ]
    assert Checkpoint(grid[0].metrics["checkpoint_path"]).to_dict()["i"] == 2


def test_a_trainer_inside_a_trial_is_stopped_with_it(tmp_path: Path) -> None:
    from lockstep.tune.integration.ray_train import TuneReportCallback

    where = str(tmp_path)

    def inner() -> None:
        for i in range(10**6):
            tune.report({"i": i})
            time.sleep(0.01)

    def trial(config: dict[str, Any]) -> None:
        DataParallelTrainer(
            inner,
            run_config=RunConfig(storage_path=where, verbose=0, callbacks=[TuneReportCallback()]),
        ).fit()

    grid = fit(trial, run={"stop": {"i": 3}})
    assert not grid.errors
    assert grid[0].metrics["i"] == 3
    assert grid.num_terminated == 1


# ------------------------------------------------------------------------------------- in process


def test_in_process() -> None:
    def here(config: dict[str, Any]) -> None:
        tune.report({"pid": os.getpid(), "x": config["x"]})

    trainer = DataParallelTrainer(
        here, scaling_config=ScalingConfig(num_workers=0), run_config=RunConfig(verbose=0)
    )
    space = {"train_loop_config": {"x": tune.grid_search([1, 2])}}
    grid = Tuner(trainer, param_space=space).fit()
    assert [(r.metrics["pid"], r.metrics["x"]) for r in grid] == [
        (os.getpid(), 1),
        (os.getpid(), 2),
    ]


def test_validation() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"num_samples": 0}, "1 or more"),
        ({"time_budget_s": -1}, "above 0"),
        ({"max_concurrent_trials": -2}, "expected an integer"),
        ({"mode": "up"}, "'min' or 'max'"),
    ]
    for arguments, text in wrong:
        with pytest.raises(ValueError, match=text):
            TuneConfig(**arguments)
    with pytest.raises(TypeError, match="expected a TrialScheduler object"):
        TuneConfig(scheduler=TrialScheduler)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a TuneConfig"):
        Tuner(count, tune_config={"num_samples": 2})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="trainer object"):
        Tuner(DataParallelTrainer)
    with pytest.raises(ValueError, match="no argument or one"):
        Tuner(lambda config, other: None)
    with pytest.raises(RuntimeError, match="no results yet"):
        tuner(count).get_results()
