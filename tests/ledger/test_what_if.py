"""The run without one of its costs: exact on simulated journals, and close on a real run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.journal.records import RunRecords
from lockstep.ledger import Ledger, read_ledger
from lockstep.ledger.what_if import (
    find_straggler,
    saved_by_fewer_checkpoints,
    saved_without_data_waits,
    saved_without_failures,
    saved_without_rank,
)
from lockstep.storage import open_storage
from lockstep.storage.local import LocalStorage
from lockstep.train import Checkpoint
from tests.integration.runs import fit
from tests.ledger.journals import Simulation


def run_of(
    directory: Path, steps: list[list[float]], data: dict[int, float] | None = None
) -> Ledger:
    """A run whose ranks compute for so long in each step; ``data``: rank → its wait in each."""
    run = Simulation(directory, size=len(steps[0]))
    run.start(1.0)
    for own in steps:
        waits = [{"data": (data or {}).get(rank, 0.0)} for rank in range(len(own))]
        busy = [mine + wait["data"] for mine, wait in zip(own, waits, strict=True)]
        run.report(busy, waits, overhead=0.25)
    run.end([0.0] * len(steps[0]))
    return run.ledger()


# Each case: what the ranks do in each step with the fault, and without.
SLOW = [[1.0, 1.5, 4.0], [2.0, 1.0, 4.0], [1.0, 1.25, 1.0]]
FAST = [[1.0, 1.5, 1.5], [2.0, 1.0, 2.0], [1.0, 1.25, 1.0]]


def test_without_the_slowest_rank(tmp_path: Path) -> None:
    slow, fast = run_of(tmp_path / "slow", SLOW), run_of(tmp_path / "fast", FAST)
    straggler = find_straggler(slow)
    assert straggler is not None
    assert (straggler.rank, straggler.host) == (2, "host-2")
    assert straggler.last == pytest.approx(2 / 3)
    assert straggler.late_s == pytest.approx(2.25)
    assert slow.wall_s - straggler.saved_s == pytest.approx(fast.wall_s)
    assert saved_without_rank(slow, 0) == 0.0


def test_without_data_waits(tmp_path: Path) -> None:
    # Rank 1's wait matters only where rank 1 is the last: rank 2 computes longer in two steps.
    waiting = run_of(tmp_path / "waiting", SLOW, {1: 3.0, 0: 0.5})
    ready = run_of(tmp_path / "ready", SLOW)
    saved = saved_without_data_waits(waiting)
    assert saved == pytest.approx(0.5 + 0.0 + 3.0)
    assert waiting.wall_s - saved == pytest.approx(ready.wall_s)


def test_with_half_the_checkpoints(tmp_path: Path) -> None:
    def ledger(directory: Path, every: int) -> Ledger:
        run = Simulation(directory, size=2)
        run.start(1.0)
        run.report([1.0, 1.0])
        for step in range(8):
            save = step % every == 0
            before = 0.5 if save else 0.0
            after = 0.25 if step and (step - 1) % every == 0 else 0.0
            run.report([1.0, 2.0], overhead=before + after, checkpoint=save)
        run.report([1.0, 1.0], overhead=0.25 if every == 1 else 0.0)
        run.end()
        return run.ledger()

    often, seldom = ledger(tmp_path / "often", 1), ledger(tmp_path / "seldom", 2)
    assert often.wall_s - saved_by_fewer_checkpoints(often) == pytest.approx(seldom.wall_s)


def test_without_failures(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    run.report([1.0, 1.0], checkpoint=True)
    run.report([1.0, 1.0])
    run.fail(0.5)
    run.start(2.0)
    run.report([1.0, 1.0])
    run.end()
    ledger = run.ledger()
    assert ledger.wall_s == 6.5
    assert ledger.wall_s - saved_without_failures(ledger) == pytest.approx(3.0)


def test_ranks_that_meet_between_reports(tmp_path: Path) -> None:
    """A rank that is slow between collectives arrives together with the others."""
    run = Simulation(tmp_path, size=2)
    run.start(1.0)
    for _ in range(4):
        run.report([3.0, 3.0], [{"ranks": 1.5}, {"ranks": 0.5}])
    run.end()
    straggler = find_straggler(run.ledger())
    assert straggler is not None
    assert (straggler.rank, straggler.last) == (1, 1.0)
    assert straggler.saved_s == pytest.approx(4.0)


def test_one_rank_has_nobody_to_wait_for(tmp_path: Path) -> None:
    assert find_straggler(run_of(tmp_path, [[1.0], [2.0]])) is None


def test_the_prediction_holds_when_the_fault_is_removed(tmp_path: Path) -> None:
    """The margin is wide: half of what was injected. ``benchmarks/ledger.py`` measures 10 %."""

    def train_func(config: dict[str, Any]) -> None:
        for step in range(6):
            time.sleep(0.1 + config["slower"][train.get_context().get_world_rank()])
            train.report({"step": step})

    def trained(slower: list[float]) -> tuple[Ledger, float]:
        result = fit(train_func, config={"slower": slower}, storage_path=str(tmp_path))
        ledger = read_ledger(RunRecords(open_storage(result.path)))
        (attempt,) = ledger.attempts
        # Before the first report the workers start, which takes any time.
        attempt.intervals = [one for one in attempt.intervals if one.overhead == "reporting"]
        # The median: a busy moment of the machine is in one interval, and not in the result.
        seconds = [one.seconds for one in attempt.intervals]
        return ledger, len(seconds) * statistics.median(seconds)

    slow, slow_s = trained([0.0, 0.5])
    _, fast_s = trained([0.0, 0.0])
    straggler = find_straggler(slow)
    assert straggler is not None
    assert straggler.rank == 1
    assert slow_s - straggler.saved_s == pytest.approx(fast_s, abs=0.5 * 5 * 0.5)


class Clock:
    """Time that passes only where a test says so; the same for everything in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(time, "time", self)
        monkeypatch.setattr(time, "perf_counter", self)
        for name in ("time_ns", "perf_counter_ns"):
            monkeypatch.setattr(time, name, lambda: round(self.now * 1e9))

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds

    def slow_down(self, seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, which takes so long."""

        def slow(*args: Any, **options: Any) -> Any:
            self.now += seconds
            return call(*args, **options)

        return slow


def test_half_the_checkpoints_of_a_real_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in this process, in which a step takes a second and a checkpoint three quarters."""
    clock = Clock(monkeypatch)
    write, publish = Checkpoint.save_files, LocalStorage.publish
    monkeypatch.setattr(Checkpoint, "save_files", clock.slow_down(0.5, write))
    monkeypatch.setattr(LocalStorage, "publish", clock.slow_down(0.25, publish))

    def train_func(config: dict[str, Any]) -> None:
        for step in range(24):
            time.time.pass_by(1.0)  # type: ignore[attr-defined]  # the clock itself is not sent
            saves = step % config["every"] == 0
            checkpoint = Checkpoint.from_dict({"step": step}) if saves else None
            train.report({"step": step}, checkpoint=checkpoint)

    def trained(every: int) -> Ledger:
        place = str(tmp_path / str(every))
        result = fit(train_func, config={"every": every}, workers=0, storage_path=place)
        return read_ledger(RunRecords(open_storage(result.path)))

    often, seldom = trained(1), trained(2)
    assert often.wall_s == pytest.approx(24 * 1.75)
    assert seldom.wall_s == pytest.approx(24 + 12 * 0.75)
    predicted = often.wall_s - saved_by_fewer_checkpoints(often)
    assert predicted == pytest.approx(seldom.wall_s, rel=0.1)
