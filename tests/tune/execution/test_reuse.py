"""``reuse_actors``: trials that follow each other in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import tune
from lockstep.config import RunConfig
from lockstep.engine import Engine, GroupSpec, WorkerGroup
from lockstep.engine.base import (
    EngineEvent,
    EngineNotice,
    OutputSink,
    WorkerExited,
    WorkerMessage,
    WorkerPreempted,
)
from lockstep.engine.loop import EventLoop
from lockstep.train.protocol import Exit
from lockstep.tune.execution import reuse
from lockstep.tune.execution.reuse import ReusingEngine, _Output
from lockstep.tune.execution.reused_worker import END_OF_OUTPUT, Idle
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


def run_trials(
    tmp_path: Path, configs: list[dict[str, Any]], *, reuse: bool = True, cls: Any = Resettable
) -> Any:
    """The trials one after the other; what they noted is in ``notes``."""
    tmp_path.mkdir(exist_ok=True)
    return tune.Tuner(
        cls,
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


class Other(Resettable):
    """Not the class of the experiment before."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), "other": True}


def test_in_this_process_nothing_is_kept(tmp_path: Path) -> None:
    lockstep.init(engine="inprocess")
    try:
        run_trials(tmp_path, [{}, {}])
        assert noted(tmp_path) == ["setup", "cleanup"] * 2
        grid = run_trials(tmp_path / "other", [{}], cls=Other)
        assert grid[0].metrics["other"]
    finally:
        lockstep.shutdown()


class Redirects(Resettable):
    """Sends what the process prints to a file of its own, as for a library in C."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        log = os.open(config["notes"] + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.close(log)


def test_a_class_that_redirects_its_output_is_reused(tmp_path: Path) -> None:
    grid = run_trials(tmp_path, [{}, {}], cls=Redirects)
    assert not grid.errors
    assert noted(tmp_path) == ["setup", "reset", "cleanup"]
    text = (tmp_path / "notes.log").read_text()
    assert text == "step of trial 0\n" * 2 + "step of trial 1\n" * 2


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
        ends: list[int] = []
        output, first, second = _Output(lambda: ends.append(cut)), Kept(), Kept()  # noqa: B023
        output.begin(first)
        assert output.tick() == 1.0
        place = whole.index(END_OF_OUTPUT) + len(END_OF_OUTPUT)
        output.write(0, whole[: min(cut, place)])
        output.write(0, whole[min(cut, place) : place])
        assert output.has_ended
        assert ends == [cut]
        assert (first.data, first.closed) == (b"one\n\0", True)
        assert output.tick() is None
        output.begin(second)
        output.write(0, whole[place:])
        output.close()
        assert (second.data, second.closed) == (b"two\n", True)


class Group(WorkerGroup):
    """Notes what is asked of a worker; the test says what the worker does."""

    def __init__(self, emit: Callable[[EngineEvent], None], output: OutputSink) -> None:
        self.emit = emit
        self.output = output
        self.told: list[Any] = []
        self.waits = False

    def send(self, rank: int, message: Any) -> None:
        self.told.append(message)

    def interrupt(self) -> None:
        self.told.append("interrupt")

    def dump_stacks(self, rank: int) -> None:
        self.told.append("dump_stacks")

    def sample(self) -> None:
        self.told.append("sample")

    @property
    def waits_for_room(self) -> bool:
        return self.waits

    def kill(self) -> None:
        self.told.append("kill")

    def abandon(self) -> None:
        self.told.append("abandon")

    def close(self) -> None:
        self.told.append("close")


class Groups(Engine):
    """Starts those."""

    name = "groups"
    single_machine = False
    in_this_process = False

    def __init__(self) -> None:
        self.started: list[Group] = []

    def check(self, spec: GroupSpec) -> list[str]:
        return []

    def capacity(self, spec: GroupSpec) -> int:
        return 1

    def resources(self) -> tuple[float, tuple[str, ...]]:
        return 1.0, ()

    def watch_capacity(self, loop: EventLoop, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def start(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
    ) -> WorkerGroup:
        self.started.append(Group(emit, output))
        return self.started[-1]

    def close(self) -> None:
        pass


class Driven:
    """An engine over those groups, and the events that its trials get."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.below = Groups()
        self.engine = ReusingEngine(self.below)

    def start(self, cpus: float = 1.0, size: int = 1) -> tuple[WorkerGroup, list[EngineEvent]]:
        events: list[EngineEvent] = []
        spec = GroupSpec(size, "module:entry", b"", cpus_per_worker=cpus)
        return self.engine.start(spec, self.loop, events.append, Kept()), events

    def turn(self) -> None:
        """Let the loop do what it has to do now."""
        self.loop.call_soon(lambda: None)
        self.loop.run_once()

    def idle(self, count: int) -> list[Group]:
        """As many workers as ``count``, each of which has run a trial."""
        trials = [self.start() for _ in range(count)]
        for (trial, events), worker in zip(trials, self.below.started, strict=True):
            worker.output.write(0, END_OF_OUTPUT)
            worker.emit(WorkerMessage(0, Idle()))
            assert events == [WorkerExited(0, 0)]
            trial.close()
            assert not worker.told
        return list(self.below.started)


@pytest.fixture
def driven() -> Iterator[Driven]:
    driven = Driven()
    yield driven
    driven.loop.close()


def test_a_trial_is_over_when_the_loop_has_delivered_its_output(driven: Driven) -> None:
    trial, events = driven.start()
    worker = driven.below.started[0]
    worker.emit(WorkerMessage(0, Idle()))
    assert not events
    driven.loop.call_soon(lambda: worker.output.write(0, END_OF_OUTPUT))
    driven.loop.run_until(lambda: bool(events))
    trial.close()
    driven.start()
    assert events == [WorkerExited(0, 0)]
    assert len(driven.below.started) == 1


def test_a_worker_that_dies_before_its_output_is_read_ends_once(driven: Driven) -> None:
    trial, events = driven.start()
    worker = driven.below.started[0]
    worker.emit(WorkerMessage(0, Idle()))
    worker.emit(WorkerExited(0, -9))
    worker.output.write(0, END_OF_OUTPUT)
    driven.turn()
    assert events == [WorkerExited(0, -9)]
    trial.close()
    assert worker.told == ["close"]


def test_a_worker_whose_output_does_not_come_is_ended(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "OUTPUT_S", 0.0)
    trial, events = driven.start()
    worker = driven.below.started[0]
    worker.emit(WorkerMessage(0, Idle()))
    driven.loop.run_until(lambda: worker.told == [Exit()])
    # Too late: the worker exits now.
    worker.output.write(0, END_OF_OUTPUT)
    driven.turn()
    assert not events
    worker.emit(WorkerExited(0, 0))
    assert events == [WorkerExited(0, 0)]
    trial.close()
    assert worker.told == [Exit(), "close"]


@pytest.mark.parametrize(("cpus", "size"), [(2.0, 1), (1.0, 2)])
def test_idle_workers_end_for_workers_that_need_other_resources(
    driven: Driven, cpus: float, size: int
) -> None:
    idle = driven.idle(2)
    driven.start(cpus, size)
    assert [worker.told for worker in idle] == [[Exit()], [Exit()]]


def test_no_worker_stays_idle_while_another_waits_for_room(driven: Driven) -> None:
    waiting = driven.start(2.0)  # kept: an engine does not keep its groups
    group = driven.below.started.pop()
    idle = driven.idle(1)
    group.waits = True
    group.emit(EngineNotice("Waiting: 2 CPU are not free."))
    assert idle[0].told == [Exit()]
    trial, _ = driven.start()
    worker = driven.below.started[-1]
    worker.output.write(0, END_OF_OUTPUT)
    worker.emit(WorkerMessage(0, Idle()))
    trial.close()
    assert worker.told == [Exit()]
    assert waiting[1] == [EngineNotice("Waiting: 2 CPU are not free.")]


def test_a_worker_whose_machine_goes_runs_no_other_trial(driven: Driven) -> None:
    (going,) = driven.idle(1)
    going.emit(WorkerPreempted(0))
    driven.start()
    assert going.told == [Exit()]
    assert len(driven.below.started) == 2
