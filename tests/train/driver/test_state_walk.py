"""Random walks through the state machine: simulated workers do anything workers may do.

Whatever happens, every report is recorded once, every commit has all its parts, and the run ends.
Hypothesis draws the bytes that decide a walk, and shrinks those of a walk that fails: zero is
always the calmest choice, and zeros follow the last byte.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import given, note, settings
from hypothesis import strategies as st

from lockstep.config import CheckpointUploadMode
from lockstep.engine.base import WorkerInfo
from lockstep.error_record import pack_error
from lockstep.train.driver import events as e
from lockstep.train.driver.events import Phase
from lockstep.train.driver.failure import FailurePolicy
from lockstep.train.driver.scaling import ScalingPolicy
from lockstep.train.driver.state import RunState, transition
from lockstep.train.protocol import CheckpointReport, Report

SYNC, ASYNC = CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC
MODES: list[CheckpointUploadMode | None] = [None, *CheckpointUploadMode]
ERROR = pack_error(ValueError("boom"))
RARE = 0.02
MOST = 4
MOST_STEPS = 3000
# Enough for nine in ten walks; the others end calmly.
BYTES = 512
Move = Callable[[], None]
Option = TypeVar("Option")


class Choices:
    """Reads decisions from bytes."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def below(self, limit: int) -> int:
        return next(self._bytes, 0) % limit

    def choose(self, options: Sequence[Option]) -> Option:
        return options[self.below(len(options))]

    def happens(self, probability: float) -> bool:
        if not probability:
            return False
        drawn = next(self._bytes, 0) * 256 + next(self._bytes, 0)
        return drawn >= (1 - probability) * 65536


@dataclass
class Worker:
    """One rank of one attempt. ``doing`` is where its function is."""

    rank: int
    doing: str = "starting"
    number: int = 0
    order: e.Save | None = None
    uploads: deque[str] = field(default_factory=deque)
    upload_failed: bool = False
    sealed: set[str] = field(default_factory=set)
    unsaved: bool = False
    stop: bool = False
    killed: bool = False
    interrupted: bool = False


class Walk:
    """A run of random length with random trouble, driven to its end."""

    def __init__(self, data: bytes) -> None:
        self.choices = Choices(data)
        choose = self.choices.choose
        self.size = choose([1, 2, 3, 4])
        self.reports = [
            (choose(MODES), [choose([False, True]) for _ in range(MOST)])
            for _ in range(choose([0, 1, 3, 6]))
        ]
        self.trouble = choose([0.0, 0.0, RARE, 0.1])
        self.max_failures = choose([0, 1, 3])
        self.disturbances = choose([0, 0, 3, 8])
        self.disturbed = self.disturbances > 0
        self.preemptible = choose([False, True])
        smallest = choose(range(1, self.size + 1)) if choose([False, True]) else self.size
        self.scaling = ScalingPolicy(smallest, choose([self.size, MOST]))
        self.short_rank = choose([None, None, None, 0, self.size - 1])
        self.remote = choose([False, True])
        self.max_pending = choose([1, 2])
        # Then what is reported in ASYNC mode is a train.State.
        self.states = choose([False, True])
        self.every = choose([0, 1, 2])
        self.dropped: set[str] = set()
        self.workers: list[Worker] = []
        self.queue: deque[e.Event] = deque()
        self.commits: deque[e.Save] = deque()
        self.timers: list[e.TimerFired] = []
        self.recorded: set[tuple[int, int]] = set()
        self.rows_of_saves: set[str] = set()
        self.saved: set[tuple[int, int, str]] = set()
        self.ordered: list[e.Save] = []
        self.committed: list[e.Save] = []
        self.lost: set[str] = set()
        self.only_in_memory: set[str] = set()
        self.stopped: list[e.RecordAttemptStopped] = []
        self.notified: tuple[e.Notice, int] | None = None
        self.ended: e.End | None = None
        self.log: list[str] = []
        self.state, actions = RunState.new(
            self.size,
            FailurePolicy(self.max_failures, choose([-1, 0, 1])),
            scaling=self.scaling if self.disturbed else None,
            capacity=self.size,
            every=self.every,
        )
        self.perform(actions)

    # The driver's side.

    def feed(self, event: e.Event) -> None:
        self.queue.append(event)
        while self.queue:
            event = self.queue.popleft()
            self.log.append(f"{event}")
            self.state, actions = transition(self.state, event)
            self.perform(actions)

    def perform(self, actions: list[e.Action]) -> None:
        for action in actions:
            assert self.ended is None, "nothing comes after the end"
            self.log.append(f"    {action}")
            getattr(self, f"on_{type(action).__name__}")(action)

    def on_StartWorkers(self, action: e.StartWorkers) -> None:
        assert all(worker.doing == "gone" for worker in self.workers)
        assert action.attempt == self.state.attempt
        assert self.scaling.smallest <= action.size <= self.scaling.largest
        self.size = action.size
        self.notified = None
        self.workers = [Worker(rank) for rank in range(self.size)]
        self.rows_of_saves.clear()
        self.ordered_before = len(self.ordered)

    def on_LaunchWorkers(self, action: e.LaunchWorkers) -> None:
        for worker in self.workers:
            if worker.doing == "ready":
                worker.doing = "running"
                if self.choices.happens(0.3):
                    self.queue.append(e.TrackerOpened(worker.rank))

    def on_OrderSave(self, action: e.OrderSave) -> None:
        self.ordered.append(action.save)
        for rank in action.plan.write:
            self.workers[rank].order = action.save

    def on_Record(self, action: e.Record) -> None:
        assert len(action.reports) == self.size
        (number,) = {report.number for report in action.reports}
        row = (self.state.attempt, number)
        assert row not in self.recorded, "recorded twice"
        self.recorded.add(row)
        if action.checkpoint is not None:
            self.rows_of_saves.add(action.checkpoint)
        self.queue.append(e.Recorded(self.choices.happens(self.trouble)))

    def on_Commit(self, action: e.Commit) -> None:
        save = action.save
        assert not save.parts_due
        assert save.name in self.rows_of_saves or not save.is_row
        if save.mode is not CheckpointUploadMode.NO_UPLOAD:
            for rank, report in enumerate(save.reports):
                if report is not None and report.checkpoint is not None:
                    assert (self.state.attempt, rank, save.name) in self.saved
        else:
            self.ordered.append(save)
        assert all(save.id > earlier.id for earlier in self.committed), "out of order"
        self.commits.append(save)
        if not self.remote:
            self.queue.append(self.outcome())

    def outcome(self) -> e.Event:
        save = self.commits.popleft()
        if self.choices.happens(self.trouble / 2):
            if save.adopted:
                return e.SaveFailed(save.name, ERROR, torn=self.choices.happens(0.2))
            timed_out = self.choices.happens(0.3)
            if timed_out or not save.is_state:
                self.lost.add(save.name)
            return e.SaveFailed(save.name, ERROR, timed_out=timed_out)
        self.committed.append(save)
        return e.Committed(save.name)

    def on_Adopt(self, action: e.Adopt) -> None:
        save = action.save
        assert all(worker.doing == "gone" for worker in self.workers)
        assert save.is_state
        newest = [order.name for order in self.ordered if order.is_state][-1]
        assert save.name == newest, "the memory has another state"
        parts = {r for r, report in enumerate(save.reports) if report and report.checkpoint}
        assert parts <= save.sealed, "a copy that is not complete"
        assert all(save.id > earlier.id for earlier in self.committed), "out of order"
        self.commits.append(save)

    def on_Discard(self, action: e.Discard) -> None:
        for worker in self.workers:
            writes = {*worker.uploads, *([worker.order.name] if worker.order else [])}
            assert worker.doing == "gone" or not writes & set(action.names), "it may still write"
        if action.in_memory:
            self.only_in_memory |= set(action.names)
        else:
            self.lost |= set(action.names)

    def on_Answer(self, action: e.Answer) -> None:
        if action.notice is not None:
            assert len(action.ranks) == self.size, "all ranks get the notice at the same report"
            # A resize may be cancelled and planned again.
            notified_before = self.notified is not None and self.notified[0].kind == "preemption"
            assert not notified_before, "notified twice"
            self.notified = (action.notice, self.state.rows)
        if self.state.stops_on_notice:
            assert action.stop
            assert self.state.notice is not None
            saves = [*self.committed, *self.state.saves]
            saved_here = any(save.report_number == self.state.rows for save in saves)
            at_once = self.state.notice.kind == "reload" and saved_here
            assert at_once or self.notified is not None, "stopped before the workers could save"
            if self.notified is not None and self.state.notice.kind == "resize":
                row = self.notified[1]
                saved = any(save.report_number > row for save in self.committed)
                assert saved, "resized without a checkpoint"
        for rank in action.ranks:
            worker = self.workers[rank]
            if worker.doing != "gone":
                assert worker.doing == "waiting"
                assert worker.order is None, "answered before the worker had saved"
                worker.doing = "running"
                worker.stop = bool(action.stop)

    def on_CloseTrackers(self, action: e.CloseTrackers) -> None:
        for rank in action.ranks:
            worker = self.workers[rank]
            if worker.doing != "gone":
                assert worker.doing == "waiting"
                worker.doing = "closing trackers"

    def on_ReleaseWorkers(self, action: e.ReleaseWorkers) -> None:
        for worker in self.workers:
            if worker.doing == "returned":
                worker.doing = "exiting"

    def on_InterruptWorkers(self, action: e.InterruptWorkers) -> None:
        for worker in self.workers:
            worker.interrupted = True

    def on_KillWorkers(self, action: e.KillWorkers) -> None:
        for worker in self.workers:
            worker.killed = True

    def on_SetTimer(self, action: e.SetTimer) -> None:
        self.timers.append(e.TimerFired(action.kind, self.state.attempt))

    def on_RecordFailure(self, action: e.RecordFailure) -> None:
        assert action.failures

    def on_RecordAttemptStopped(self, action: e.RecordAttemptStopped) -> None:
        assert all(worker.doing == "gone" for worker in self.workers)
        self.stopped.append(action)

    def on_ExplainHang(self, action: e.ExplainHang) -> None:
        assert action.missing
        for rank in action.waiting:
            assert self.workers[rank].doing in ("waiting", "gone")
        for rank in action.missing:
            assert self.workers[rank].doing not in ("returned", "closed")

    def on_End(self, action: e.End) -> None:
        assert action.phase is self.state.phase
        self.ended = action

    # The workers' side.

    def moves(self) -> list[Move]:
        found = [move for worker in self.workers for move in self.moves_of(worker)]
        if self.commits:
            found.append(lambda: self.feed(self.outcome()))
        return found

    def moves_of(self, worker: Worker) -> list[Move]:
        if worker.doing == "gone":
            return []
        if worker.killed:
            return [lambda: self.exit(worker, -9)]
        found: list[Move] = []
        if worker.uploads:
            found.append(lambda: self.upload(worker))
        if worker.interrupted and worker.doing != "exiting":
            return [*found, lambda: self.exit(worker, 130)]
        if worker.doing == "starting":
            found.append(lambda: self.send_ready(worker))
        elif worker.doing == "running":
            if worker.stop or worker.number >= self.length(worker):
                if not worker.uploads and not worker.upload_failed:
                    found.append(lambda: self.finish(worker))
            else:
                found.append(lambda: self.report(worker))
        elif worker.doing == "waiting" and worker.order is not None:
            if worker.order.mode is SYNC or len(worker.uploads) < self.max_pending:
                found.append(lambda: self.save(worker))
        elif worker.doing == "closing trackers":
            found.append(lambda: self.finish(worker, "closed"))
        elif worker.doing == "exiting":
            found.append(lambda: self.exit(worker, 0))
        elif worker.doing == "raised":
            found.append(lambda: self.exit(worker, 1))
        return found

    def length(self, worker: Worker) -> int:
        return len(self.reports) - (worker.rank == self.short_rank)

    def send_ready(self, worker: Worker) -> None:
        worker.doing = "ready"
        self.feed(e.Ready(worker.rank, WorkerInfo(worker.rank, 1, "", ""), None))

    def report(self, worker: Worker) -> None:
        if self.choices.happens(self.trouble):
            self.raise_error(worker)
            return
        if worker.rank == 0 and self.choices.happens(0.2):
            worker.doing = "waiting"
            part = CheckpointReport({"f": 1}, SYNC, None, None, None)
            self.feed(e.Reported(0, Report(worker.number, None, part, None, 0.0, 0.0)))
            return
        mode, ranks = self.reports[worker.number]
        checkpoint = None
        if mode is not None and ranks[worker.rank]:
            checkpoint = CheckpointReport({"f": 1}, mode, None, None, None)
        if checkpoint is not None and mode is ASYNC and self.states:
            checkpoint = checkpoint._replace(is_state=True)
            worker.unsaved = True
            if self.choices.happens(0.2):
                self.feed(e.SaveDue())
        worker.number += 1
        worker.doing = "waiting"
        self.feed(e.Reported(worker.rank, Report(worker.number, {}, checkpoint, None, 0.0, 0.0)))

    def save(self, worker: Worker) -> None:
        order, worker.order = worker.order, None
        assert order is not None
        if order.is_state:
            assert not worker.uploads, "the memory is in use"
            worker.unsaved = False
        if self.choices.happens(self.trouble):
            if order.is_state and self.choices.happens(0.5):
                self.drop(worker, order.name)
            else:
                self.raise_error(worker)
        elif order.mode is SYNC:
            self.send_saved(worker, order.name)
        else:
            worker.uploads.append(order.name)
            self.feed(e.SnapshotPart(worker.rank, order.name))

    def upload(self, worker: Worker) -> None:
        if self.states and worker.uploads[0] not in worker.sealed:
            worker.sealed.add(worker.uploads[0])
            self.feed(e.SealedPart(worker.rank, worker.uploads[0]))
            return
        name = worker.uploads.popleft()
        if self.states and self.choices.happens(self.trouble):
            self.drop(worker, name)
        elif self.choices.happens(self.trouble):
            # The thread of uploads fails; the function continues until its next report.
            worker.uploads.clear()
            worker.upload_failed = True
            self.feed(e.Raised(worker.rank, ERROR))
        else:
            self.send_saved(worker, name)

    def drop(self, worker: Worker, name: str) -> None:
        self.dropped.add(name)
        self.feed(e.SaveDropped(worker.rank, name, ERROR))

    def send_saved(self, worker: Worker, name: str) -> None:
        self.saved.add((self.state.attempt, worker.rank, name))
        self.feed(e.SavedPart(worker.rank, name, {}))

    def raise_error(self, worker: Worker) -> None:
        worker.doing = "raised"
        self.feed(e.Raised(worker.rank, ERROR))

    def finish(self, worker: Worker, doing: str = "returned") -> None:
        if worker.unsaved and not worker.stop and doing == "returned":
            worker.doing = "waiting"
            part = CheckpointReport({"f": 1}, ASYNC, None, None, None, True, None, True)
            final = Report(worker.number + 1, None, part, None, 0.0, 0.0)
            self.feed(e.Reported(worker.rank, final))
            return
        worker.doing = doing
        self.feed(e.Returned(worker.rank))

    def exit(self, worker: Worker, exitcode: int) -> None:
        worker.doing = "gone"
        worker.uploads.clear()
        self.feed(e.Gone(worker.rank, exitcode, ""))

    def run(self) -> None:
        for _ in range(MOST_STEPS):
            if self.state.phase.ended:
                return
            self.step()

    def step(self) -> None:
        choices, moves = self.choices, self.moves()
        alive = [worker for worker in self.workers if worker.doing != "gone"]
        if self.disturbances and choices.happens(0.1):
            self.disturbances -= 1
            self.feed(self.disturbance())
        elif alive and choices.happens(self.trouble / 4):
            self.exit(choices.choose(alive), -11)
        elif choices.happens(self.trouble / 8):
            self.feed(e.Interrupt())
        elif self.timers and (not moves or choices.happens(0.05)):
            self.feed(self.timers.pop(choices.below(len(self.timers))))
        else:
            assert moves, "stuck: nobody can act and the run has not ended"
            choices.choose(moves)()

    def disturbance(self) -> e.Event:
        choose = self.choices.choose
        kinds = ["capacity"] * 5 + ["stuck", "hang"] * 2
        kind = choose([*kinds, *["preemption"] * 3, "reload"] if self.preemptible else kinds)
        if kind == "capacity":
            return e.CapacityChanged(choose(range(MOST + 2)))
        if kind == "preemption":
            return e.Preempt(choose([None, choose(range(self.size))]), 9.0)
        if kind == "reload":
            return e.Reload()
        return e.Stuck(1.0, fatal=kind == "hang")

    def check(self) -> None:
        state = self.state
        assert self.ended is not None
        assert all(worker.doing == "gone" for worker in self.workers)
        assert not self.commits
        assert state.saves == ()
        assert state.rows == len(self.recorded)
        assert state.attempt <= self.max_failures + 1 + len(self.stopped)
        names = [save.name for save in self.ordered]
        committed = {save.name for save in self.committed}
        assert len(names) == len(set(names))
        assert not committed & self.lost
        # A state that waited for the memory was never ordered.
        assert committed | ((self.lost | self.only_in_memory) & set(names)) == set(names)
        assert state.committed == committed
        if state.phase is Phase.FINISHED:
            assert self.rows_of_saves <= committed | self.dropped
            states = [save.id for save in self.ordered[self.ordered_before :] if save.is_state]
            assert not states or self.committed[-1].id >= states[-1], "the last state is lost"
        if self.disturbed:
            return
        assert not self.stopped
        if self.trouble == 0.0:
            even = self.short_rank is None or not self.reports or self.size == 1
            assert (state.phase is Phase.FINISHED) == even
        if state.phase is Phase.FINISHED and self.trouble == 0.0:
            expected = len(self.reports) - (self.short_rank is not None and bool(self.reports))
            assert state.rows == max(0, expected)
            assert committed == set(names)


@settings(max_examples=2000)
@given(st.binary(min_size=BYTES, max_size=BYTES))
def test_every_walk_ends_with_consistent_records(data: bytes) -> None:
    walk = Walk(data)
    try:
        walk.run()
        walk.check()
    except Exception:
        note("\n".join(walk.log))
        raise


def test_walks_reach_every_end() -> None:
    ends = set()
    stopped = set()
    attempts = 0
    for seed in range(300):
        walk = Walk(random.Random(seed).randbytes(BYTES))
        walk.run()
        ends.add(walk.state.phase)
        stopped |= {(stop.notice.kind, stop.size is None) for stop in walk.stopped}
        attempts = max(attempts, walk.state.attempt)
    assert ends == {Phase.FINISHED, Phase.FAILED, Phase.INTERRUPTED, Phase.PREEMPTED}
    kinds = {("preemption", True), ("preemption", False), ("resize", False), ("reload", True)}
    assert stopped == kinds
    assert attempts > 2
