"""Subclasses of ``BaseTrainer`` with a ``training_loop`` of their own, on real workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep import data, train, tune
from lockstep.train import (
    BaseTrainer,
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
)


class Looping(BaseTrainer):
    """Calls a function with itself, in the worker."""

    def __init__(self, loop: Callable[[Any], Any], custom: Any = None, **options: Any) -> None:
        options.setdefault("run_config", RunConfig(verbose=0))
        super().__init__(**options)
        self.loop, self.custom = loop, custom

    def training_loop(self) -> None:
        self.loop(self)


class Prepared(BaseTrainer):
    """Does something in each of its methods."""

    def setup(self) -> None:
        self.steps = [f"setup in {os.getpid()}"]

    def preprocess_datasets(self) -> None:
        self.steps.append("preprocess")
        self.datasets = {name: one.map_batches(_double) for name, one in self.datasets.items()}

    def training_loop(self) -> None:
        rows = [int(row["id"]) for row in self.datasets["train"].iter_rows()]
        train.report({"rows": rows, "steps": self.steps, "workers": self.scaling_config.sizes[0]})


def _double(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"] * 2}


def test_the_methods_are_called_in_a_worker_in_order() -> None:
    trainer = Prepared(
        datasets={"train": data.range(3)},
        scaling_config=ScalingConfig(num_workers=3),
        run_config=RunConfig(verbose=0),
    )
    result = trainer.fit()
    assert result.metrics["rows"] == [0, 2, 4]
    assert result.metrics["workers"] == 3  # as configured; the loop itself runs once
    setup, preprocess = result.metrics["steps"]
    assert preprocess == "preprocess"
    assert setup.startswith("setup in ")
    assert setup != f"setup in {os.getpid()}"
    assert result.log_dir.name.startswith("Prepared_")


def test_the_constructor_gets_the_same_arguments_again() -> None:
    def loop(self: Looping) -> None:
        rows = self.datasets["train"].count()
        train.report({"custom": self.custom, "rows": rows, **train.get_context().get_metadata()})

    trainer = Looping(
        loop, {"a": [1]}, datasets={"train": lambda: data.range(5)}, metadata={"who": "me"}
    )
    assert trainer.fit().reported_metrics == {"custom": {"a": [1]}, "rows": 5, "who": "me"}


def test_metadata_is_in_the_checkpoints() -> None:
    def loop(self: Looping) -> None:
        checkpoint = Checkpoint.from_dict({})
        checkpoint.set_metadata({"b": 2})
        train.report({}, checkpoint)

    checkpoint = Looping(loop, metadata={"a": 1, "b": 1}).fit().checkpoint
    assert checkpoint is not None
    assert checkpoint.get_metadata() == {"a": 1, "b": 2}


def test_an_error_of_the_loop_is_the_cause() -> None:
    def loop(self: Looping) -> None:
        raise ValueError("not today")

    with pytest.raises(TrainingFailedError) as raised:
        Looping(loop).fit()
    assert isinstance(raised.value.__cause__, ValueError)


def _resuming(self: Looping) -> None:
    start = self.starting_checkpoint.to_dict()["n"] + 1 if self.starting_checkpoint else 0
    for n in range(start, 4):
        train.report({"n": n, "start": start}, Checkpoint.from_dict({"n": n}))
        if n == 1 and start == 0:
            raise ValueError("not today")


def test_a_failed_loop_is_started_again_from_its_checkpoint() -> None:
    config = RunConfig(verbose=0, failure_config=FailureConfig(max_failures=1))
    result = Looping(_resuming, run_config=config).fit()
    assert result.reported_metrics == {"n": 3, "start": 2}


def test_a_run_is_restored(tmp_path: Path) -> None:
    config = RunConfig(verbose=0, name="here", storage_path=tmp_path)
    with pytest.raises(TrainingFailedError, match=r"Looping\.restore\('[^']*'\)\.fit\(\)"):
        Looping(_resuming, run_config=config).fit()
    path = tmp_path / "here"
    assert Looping.can_restore(path)
    assert not Looping.can_restore(tmp_path)
    restored = Looping.restore(path)
    assert restored.run_config.name == "here"
    result = restored.fit()
    assert result.reported_metrics == {"n": 3, "start": 2}
    assert Looping.restore(path).fit().reported_metrics == {"n": 3, "start": 2}  # it has finished
    with pytest.raises(ValueError, match=r"Prepared\.restore.*a run of Looping"):
        Prepared.restore(path)


def test_a_restore_takes_other_arguments(tmp_path: Path) -> None:
    def loop(self: Looping) -> None:
        train.report({"custom": self.custom}, Checkpoint.from_dict({}))
        if self.custom == "old":
            raise ValueError("not today")

    config = RunConfig(verbose=0, name="here", storage_path=tmp_path)
    with pytest.raises(TrainingFailedError):
        Looping(loop, custom="old", run_config=config).fit()
    result = Looping.restore(tmp_path / "here", custom="new").fit()
    assert result.metrics["custom"] == "new"


def test_a_tuner_searches_the_arguments() -> None:
    def loop(self: Looping) -> None:
        if self.custom["x"] == 2:
            raise ValueError("two")
        train.report({**self.custom, "workers": self.scaling_config.num_workers})

    trainer = Looping(loop, {"x": 0, "kept": 1}, scaling_config=ScalingConfig(num_workers=4))
    space = {
        "custom": {"x": tune.grid_search([1, 2])},
        "scaling_config": ScalingConfig(num_workers=2),
    }
    grid = tune.Tuner(trainer, param_space=space, run_config=RunConfig(verbose=0)).fit()
    done, failed = grid
    assert done.reported_metrics == {"x": 1, "kept": 1, "workers": 2}
    assert isinstance(failed.error, ValueError)
    with pytest.raises(ValueError, match=r"'speed'.*over a Looping"):
        tune.Tuner(trainer, param_space={"speed": 1})


def test_tune_run_takes_it_as_a_trainable() -> None:
    trainer = Looping(lambda self: train.report({"x": self.custom}), 1)
    analysis = tune.run(trainer.as_trainable(), config={"custom": tune.grid_search([5])}, verbose=0)
    assert analysis.trials[0].last_result["x"] == 5


def test_a_data_parallel_trainer_with_a_loop_of_its_own() -> None:
    class Own(DataParallelTrainer):
        def training_loop(self) -> None:
            train.report({"lr": self.train_loop_config["lr"]})

    trainer = Own(lambda: None, train_loop_config={"lr": 2}, run_config=RunConfig(verbose=0))
    assert trainer.fit().metrics["lr"] == 2


def test_without_a_loop_there_is_nothing_to_fit() -> None:
    class Empty(BaseTrainer):
        pass

    with pytest.raises(TypeError, match=r"Empty has no training_loop\(self\)"):
        Empty().fit()
