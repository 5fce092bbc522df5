"""Random walks through the state machine: simulated workers do anything workers may do.

Whatever happens, every report is recorded once, every commit has all its parts, and the run ends.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

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
Move = Callable[[], None]


@dataclass
class Worker:
    """One rank of one attempt. ``doing`` is where its function is."""

    rank: int
    doing: str = "starting"
    number: int = 0
    order: e.Save | None = None
    uploads: deque[str] = field(default_factory=deque)
    stop: bool = False
    killed: bool = False
    interrupted: bool = False


class Walk:
    """A run of random length with random trouble, driven to its end."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.holds = random.Random(-seed)
        choose = self.random.choice
        self.size = choose([1, 2, 3, 4])
        self.reports = [
            (choose(MODES), [choose([True, False]) for _ in range(MOST)])
            for _ in range(choose([0, 1, 3, 6]))
        ]
        self.trouble = choose([0.0, 0.0, RARE, 0.1])
        self.max_failures = choose([0, 1, 3])
        self.unrest = choose([0, 0, 3, 8])
        self.restless = self.unrest > 0
        self.preemptible = choose([True, False])
        smallest = self.random.randint(1, self.size) if choose([True, False]) else self.size
        self.scaling = ScalingPolicy(smallest, choose([self.size, MOST]))
        self.short_rank = choose([None, None, None, 0, self.size - 1])
        self.remote = choose([True, False])
        self.max_pending = choose([1, 2])
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
        self.leaves: list[e.RecordAttemptStopped] = []
        self.told: tuple[e.Notice, int] | None = None
        self.ended: e.End | None = None
        self.log: list[str] = []
        self.state, actions = RunState.new(
            self.size,
            FailurePolicy(self.max_failures, choose([-1, 0, 1])),
            scaling=self.scaling if self.unrest else None,
            capacity=self.size,
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
        self.told = None
        self.workers = [Worker(rank) for rank in range(self.size)]
        self.rows_of_saves.clear()

    def on_LaunchWorkers(self, action: e.LaunchWorkers) -> None:
        for worker in self.workers:
            if worker.doing == "ready":
                worker.doing = "running"
                if self.holds.random() < 0.3:
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
        self.queue.append(e.Recorded(self.random.random() < self.trouble))

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
        if self.random.random() < self.trouble / 2:
            self.lost.add(save.name)
            return e.SaveFailed(save.name, ERROR)
        self.committed.append(save)
        return e.Committed(save.name)

    def on_Discard(self, action: e.Discard) -> None:
        assert all(worker.doing == "gone" for worker in self.workers), "somebody may still write"
        self.lost |= set(action.names)

    def on_Answer(self, action: e.Answer) -> None:
        if action.notice is not None:
            assert len(action.ranks) == self.size, "all hear of it at the same report"
            # A resize may be called off and planned anew.
            told_before = self.told is not None and self.told[0].kind == "preemption"
            assert not told_before, "told twice"
            self.told = (action.notice, self.state.rows)
        if self.state.leaving:
            assert action.stop
            assert self.told is not None, "stopped before they could save"
            notice, row = self.told
            saved = any(save.report_number > row for save in self.committed)
            assert saved or notice.kind == "preemption", "resized without a checkpoint"
        for rank in action.ranks:
            worker = self.workers[rank]
            if worker.doing != "gone":
                assert worker.doing == "waiting"
                assert worker.order is None, "answered before it had saved"
                worker.doing = "running"
                worker.stop = action.stop

    def on_CloseTrackers(self, action: e.CloseTrackers) -> None:
        for rank in action.ranks:
            worker = self.workers[rank]
            if worker.doing != "gone":
                assert worker.doing == "waiting"
                worker.doing = "letting go"

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
        self.leaves.append(action)

    def on_ExplainHang(self, action: e.ExplainHang) -> None:
        assert action.missing
        for rank in action.waiting:
            assert self.workers[rank].doing in ("waiting", "gone")
        for rank in action.missing:
            assert self.workers[rank].doing != "returned"

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
            return [lambda: self.go(worker, -9)]
        found: list[Move] = []
        if worker.uploads:
            found.append(lambda: self.upload(worker))
        if worker.interrupted and worker.doing != "exiting":
            return [*found, lambda: self.go(worker, 130)]
        if worker.doing == "starting":
            found.append(lambda: self.say_ready(worker))
        elif worker.doing == "running":
            if worker.stop or worker.number >= self.length(worker):
                if not worker.uploads:
                    found.append(lambda: self.finish(worker))
            else:
                found.append(lambda: self.report(worker))
        elif worker.doing == "waiting" and worker.order is not None:
            if worker.order.mode is SYNC or len(worker.uploads) < self.max_pending:
                found.append(lambda: self.save(worker))
        elif worker.doing == "letting go":
            found.append(lambda: self.finish(worker))
        elif worker.doing == "exiting":
            found.append(lambda: self.go(worker, 0))
        elif worker.doing == "raised":
            found.append(lambda: self.go(worker, 1))
        return found

    def length(self, worker: Worker) -> int:
        return len(self.reports) - (worker.rank == self.short_rank)

    def say_ready(self, worker: Worker) -> None:
        worker.doing = "ready"
        self.feed(e.Ready(worker.rank, WorkerInfo(worker.rank, 1, "", ""), None))

    def report(self, worker: Worker) -> None:
        if self.happens():
            self.raise_error(worker)
            return
        if worker.rank == 0 and self.random.random() < 0.2:
            worker.doing = "waiting"
            part = CheckpointReport({"f": 1}, SYNC, None, None, None)
            self.feed(e.Reported(0, Report(worker.number, None, part, None, 0.0, 0.0)))
            return
        mode, ranks = self.reports[worker.number]
        part_of_it = None
        if mode is not None and ranks[worker.rank]:
            part_of_it = CheckpointReport({"f": 1}, mode, None, None, None)
        worker.number += 1
        worker.doing = "waiting"
        self.feed(e.Reported(worker.rank, Report(worker.number, {}, part_of_it, None, 0.0, 0.0)))

    def save(self, worker: Worker) -> None:
        order, worker.order = worker.order, None
        assert order is not None
        if self.happens():
            self.raise_error(worker)
        elif order.mode is SYNC:
            self.say_saved(worker, order.name)
        else:
            worker.uploads.append(order.name)
            self.feed(e.SnapshotPart(worker.rank, order.name))

    def upload(self, worker: Worker) -> None:
        name = worker.uploads.popleft()
        if self.happens():
            worker.uploads.clear()
            self.raise_error(worker)
        else:
            self.say_saved(worker, name)

    def say_saved(self, worker: Worker, name: str) -> None:
        self.saved.add((self.state.attempt, worker.rank, name))
        self.feed(e.SavedPart(worker.rank, name, {}))

    def raise_error(self, worker: Worker) -> None:
        worker.doing = "raised"
        self.feed(e.Raised(worker.rank, ERROR))

    def finish(self, worker: Worker) -> None:
        worker.doing = "returned"
        self.feed(e.Returned(worker.rank))

    def go(self, worker: Worker, exitcode: int) -> None:
        worker.doing = "gone"
        worker.uploads.clear()
        self.feed(e.Gone(worker.rank, exitcode, ""))

    def happens(self) -> bool:
        return self.random.random() < self.trouble

    def step(self) -> None:
        moves = self.moves()
        alive = [worker for worker in self.workers if worker.doing != "gone"]
        if self.unrest and self.random.random() < 0.1:
            self.unrest -= 1
            moves = [lambda: self.feed(self.unrestful_event())]
        elif alive and self.random.random() < self.trouble / 4:
            worker = self.random.choice(alive)
            moves = [lambda: self.go(worker, -11)]
        elif self.random.random() < self.trouble / 8:
            moves = [lambda: self.feed(e.Interrupt())]
        elif self.timers and (not moves or self.random.random() < 0.05):
            timer = self.timers.pop(self.random.randrange(len(self.timers)))
            moves = [lambda: self.feed(timer)]
        assert moves, "stuck: nobody can act and the run has not ended"
        self.random.choice(moves)()

    def unrestful_event(self) -> e.Event:
        chance = self.random.random()
        if self.preemptible and chance < 0.3:
            return e.Preempt(self.random.choice([None, self.random.randrange(self.size)]), 9.0)
        if chance < 0.5:
            return e.Stuck(1.0, fatal=chance < 0.4)
        return e.CapacityChanged(self.random.randint(0, MOST + 1))

    def check(self) -> None:
        state = self.state
        assert self.ended is not None
        assert all(worker.doing == "gone" for worker in self.workers)
        assert not self.commits
        assert state.saves == ()
        assert state.rows == len(self.recorded)
        assert state.attempt <= self.max_failures + 1 + len(self.leaves)
        names = [save.name for save in self.ordered]
        committed = {save.name for save in self.committed}
        assert len(names) == len(set(names))
        assert not committed & self.lost
        assert committed | self.lost == set(names)
        assert state.committed == committed
        if state.phase is Phase.FINISHED:
            assert self.rows_of_saves <= committed
        if self.restless:
            return
        assert not self.leaves
        if self.trouble == 0.0:
            even = self.short_rank is None or not self.reports or self.size == 1
            assert (state.phase is Phase.FINISHED) == even
        if state.phase is Phase.FINISHED and self.trouble == 0.0:
            expected = len(self.reports) - (self.short_rank is not None and bool(self.reports))
            assert state.rows == max(0, expected)
            assert committed == set(names)


@pytest.mark.parametrize("block", range(10))
def test_every_walk_ends_with_its_books_in_order(block: int) -> None:
    for seed in range(block * 200, (block + 1) * 200):
        walk = Walk(seed)
        try:
            for _ in range(3000):
                if walk.state.phase.ended:
                    break
                walk.step()
            walk.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(walk.log[-40:])) from error


def test_the_walks_go_everywhere() -> None:
    ends = set()
    leaves = set()
    attempts = 0
    for seed in range(300):
        walk = Walk(seed)
        while not walk.state.phase.ended:
            walk.step()
        ends.add(walk.state.phase)
        leaves |= {(leave.notice.kind, leave.size is None) for leave in walk.leaves}
        attempts = max(attempts, walk.state.attempt)
    assert ends == {Phase.FINISHED, Phase.FAILED, Phase.INTERRUPTED, Phase.PREEMPTED}
    assert leaves == {("preemption", True), ("preemption", False), ("resize", False)}
    assert attempts > 2
