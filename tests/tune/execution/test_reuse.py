"""``reuse_actors``: trials that follow each other in one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.config import RunConfig
from lockstep.engine.base import OutputSink
from lockstep.tune.execution.reuse import _Output
from lockstep.tune.execution.reused_worker import END_OF_OUTPUT
from lockstep.tune.schedulers import FIFOScheduler


def note(config: dict[str, Any], text: str) -> None:
    with open(config["notes"], "a", encoding="utf-8") as file:
        file.write(f"{text}\n")


class Resettable(tune.Trainable):
    """Takes another config, unless that says otherwise."""

    def setup(self, config: dict[str, Any]) -> None:
        self.steps = 0
        note(config, f"setup {os.getpid()}")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        own = new_config["each"][new_config["number"]]
        if own.get("raises"):
            raise RuntimeError("cannot be reset")
        if own.get("refuses"):
            return False
        self.steps = 0
        note(new_config, f"reset {os.getpid()}")
        return True

    def step(self) -> dict[str, Any]:
        if self.config["each"][self.config["number"]].get("fails"):
            raise RuntimeError("raised on purpose")
        self.steps += 1
        print(f"step of trial {self.config['number']}")
        return {"score": self.config["number"], "steps": self.steps, "done": self.steps == 2}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.steps = checkpoint["steps"]
        note(self.config, f"load {self.steps}")

    def cleanup(self) -> None:
        note(self.config, f"cleanup {os.getpid()}")


def run_trials(tmp_path: Path, configs: list[dict[str, Any]], *, reuse: bool = True) -> Any:
    """The trials one after the other; what they noted is in ``notes``."""
    return tune.Tuner(
        Resettable,
        param_space={
            "notes": str(tmp_path / "notes"),
            "number": tune.grid_search(list(range(len(configs)))),
            "each": configs,
        },
        tune_config=tune.TuneConfig(
            metric="score", mode="max", reuse_actors=reuse, max_concurrent_trials=1
        ),
        run_config=RunConfig(storage_path=tmp_path, name="reused", verbose=0),
    ).fit()


def noted(tmp_path: Path) -> list[str]:
    return [line.split()[0] for line in (tmp_path / "notes").read_text().splitlines()]


def processes(tmp_path: Path) -> set[str]:
    lines = (tmp_path / "notes").read_text().splitlines()
    return {line.split()[1] for line in lines if line.split()[0] in ("setup", "reset")}


def test_a_class_is_reused(tmp_path: Path) -> None:
    grid = run_trials(tmp_path, [{}, {}, {}])
    assert [result.metrics["score"] for result in grid] == [0, 1, 2]
    assert [result.metrics["training_iteration"] for result in grid] == [2, 2, 2]
    assert noted(tmp_path) == ["setup", "reset", "reset", "cleanup"]
    assert len(processes(tmp_path)) == 1
    # What each has printed is in its own log.
    for number, result in enumerate(grid):
        log = Path(result.path, "logs", "rank_0.log").read_text()
        assert log == f"step of trial {number}\n" * 2


def test_without_it_each_trial_has_a_process(tmp_path: Path) -> None:
    run_trials(tmp_path, [{}, {}], reuse=False)
    assert noted(tmp_path) == ["setup", "cleanup"] * 2
    assert len(processes(tmp_path)) == 2


def test_a_class_that_refuses_a_config_is_made_again(tmp_path: Path) -> None:
    grid = run_trials(tmp_path, [{}, {"refuses": True}, {}])
    assert not grid.errors
    assert noted(tmp_path) == ["setup", "cleanup", "setup", "reset", "cleanup"]


@pytest.mark.parametrize("how", ["fails", "raises"])
def test_after_a_failure_the_next_trial_gets_a_new_process(tmp_path: Path, how: str) -> None:
    grid = run_trials(tmp_path, [{}, {how: True}, {}])
    assert [result.error is None for result in grid] == [True, False, True]
    assert noted(tmp_path).count("setup") == 2
    assert noted(tmp_path).count("cleanup") == 2
    assert len(processes(tmp_path)) == 2


class PausesEachReport(FIFOScheduler):
    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
        return self.PAUSE


def test_a_paused_trial_continues_in_the_same_process(tmp_path: Path) -> None:
    grid = tune.Tuner(
        Resettable,
        param_space={
            "notes": str(tmp_path / "notes"),
            "number": tune.grid_search([0, 1]),
            "each": [{}, {}],
        },
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            reuse_actors=True,
            max_concurrent_trials=1,
            scheduler=PausesEachReport(),
        ),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert [result.metrics["steps"] for result in grid] == [2, 2]
    assert len(processes(tmp_path)) == 1
    assert noted(tmp_path).count("setup") == noted(tmp_path).count("cleanup") == 1
    assert noted(tmp_path).count("load") == 2


class Kept(OutputSink):
    def __init__(self) -> None:
        self.data = b""
        self.closed = False

    def write(self, rank: int, data: bytes) -> None:
        self.data += data

    def tick(self) -> float | None:
        return 1.0

    def close(self) -> None:
        self.closed = True


def test_output_is_divided_at_the_marks_wherever_a_read_ends() -> None:
    whole = b"one\n\0" + END_OF_OUTPUT + b"two\n"
    for cut in range(len(whole)):
        output, first, second = _Output(), Kept(), Kept()
        output.begin(first)
        assert output.tick() == 1.0
        place = whole.index(END_OF_OUTPUT) + len(END_OF_OUTPUT)
        output.write(0, whole[: min(cut, place)])
        output.write(0, whole[min(cut, place) : place])
        assert output.wait_for_end()
        assert (first.data, first.closed) == (b"one\n\0", True)
        assert output.tick() is None
        output.begin(second)
        output.write(0, whole[place:])
        output.close()
        assert (second.data, second.closed) == (b"two\n", True)
