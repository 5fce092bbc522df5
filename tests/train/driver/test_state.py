"""The run as a pure state machine: every path of its picture."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from lockstep.config import CheckpointUploadMode
from lockstep.engine.base import WorkerInfo
from lockstep.error_record import pack_error, summarise_error
from lockstep.errors import GuardError, GuardSuspicion
from lockstep.train.driver import events as e
from lockstep.train.driver.events import Phase
from lockstep.train.driver.failure import FailurePolicy, WorkerFailure, first_cause
from lockstep.train.driver.scaling import ScalingPolicy
from lockstep.train.driver.state import IllegalTransition, RunState, transition
from lockstep.train.protocol import CheckpointReport, Report
from tests.counted import lines_run

SYNC, ASYNC, NO_UPLOAD = (
    CheckpointUploadMode.SYNC,
    CheckpointUploadMode.ASYNC,
    CheckpointUploadMode.NO_UPLOAD,
)
ERROR = pack_error(ValueError("boom"))


class Machine:
    """A state with the actions it asked for, last batch in ``actions``."""

    def __init__(
        self,
        size: int = 2,
        *,
        max_failures: int = 0,
        max_preemptions: int = -1,
        first_checkpoint_id: int = 0,
        sizes: tuple[int, int] | None = None,
        capacity: int = 0,
    ):
        self.state, self.actions = RunState.new(
            size,
            FailurePolicy(max_failures, max_preemptions),
            scaling=ScalingPolicy(*sizes) if sizes else None,
            capacity=capacity,
            next_checkpoint_id=first_checkpoint_id,
        )

    def phase(self) -> Phase:
        return self.state.phase

    @property
    def kinds(self) -> list[type]:
        return [type(action) for action in self.actions]

    def feed(self, *events: e.Event) -> list[e.Action]:
        self.actions = []
        for event in events:
            self.state, actions = transition(self.state, event)
            self.actions += actions
        return self.actions

    def run(self) -> Machine:
        self.feed(*(ready(rank) for rank in range(self.state.world_size)))
        assert self.phase() is Phase.RUNNING
        return self

    def wait_out(self) -> None:
        """Let the wait before the next attempt pass, if there is one."""
        if self.phase() is Phase.WAITING:
            self.feed(e.TimerFired("retry", self.state.attempt))

    def report(self, *modes: CheckpointUploadMode | None, number: int = 1) -> list[e.Action]:
        return self.feed(*(report(rank, mode, number) for rank, mode in enumerate(modes)))

    def row(self, number: int, mode: CheckpointUploadMode | None = None) -> list[e.Action]:
        """A report of every rank up to its answer; with a mode, also a checkpoint."""
        size = self.state.world_size
        actions = self.report(*[mode] * size, number=number)
        name = name_of(actions) if mode else ""
        if mode is ASYNC:
            self.snapshotted(name, *range(size))
        elif mode is SYNC:
            self.saved(name, *range(size))
        actions = self.feed(e.Recorded(False))
        if mode is ASYNC:
            actions += self.saved(name, *range(size))
        return actions + self.feed(e.Committed(name)) if mode else actions

    def stop(self) -> list[e.Action]:
        """Every rank stops where it was told to."""
        size = self.state.world_size
        self.feed(*map(e.Returned, range(size)))
        return self.gone(*range(size))

    def saved(self, name: str, *ranks: int) -> list[e.Action]:
        return self.feed(*(e.SavedPart(rank, name, {}) for rank in ranks))

    def snapshotted(self, name: str, *ranks: int) -> list[e.Action]:
        return self.feed(*(e.SnapshotPart(rank, name) for rank in ranks))

    def gone(self, *ranks: int, exitcode: int | None = 0) -> list[e.Action]:
        return self.feed(*(e.Gone(rank, exitcode, "") for rank in ranks))


def ready(rank: int) -> e.Ready:
    return e.Ready(rank, WorkerInfo(rank, 100 + rank, "host", "127.0.0.1"), f"news {rank}")


def part(mode: CheckpointUploadMode, dir_name: str | None = None) -> CheckpointReport:
    return CheckpointReport({"file": 1}, mode, dir_name, None, None)


def report(
    rank: int, mode: CheckpointUploadMode | None = None, number: int = 1, name: str | None = None
) -> e.Reported:
    checkpoint = None if mode is None else part(mode, name)
    return e.Reported(rank, Report(number, {"rank": rank}, checkpoint, None, 0.0, 0.0))


def saving(rank: int) -> e.Reported:
    """``save_checkpoint()``."""
    return e.Reported(rank, Report(0, None, part(SYNC), None, 0.0, 0.0))


def name_of(actions: list[e.Action]) -> str:
    (save,) = [action.save for action in actions if isinstance(action, (e.OrderSave, e.Commit))]
    return save.name


class TestStartAndEnd:
    def test_begins_by_starting_workers(self) -> None:
        machine = Machine()
        assert machine.phase() is Phase.STARTING
        assert machine.actions == [e.StartWorkers(1, 2)]

    def test_launches_when_all_are_ready_in_any_order(self) -> None:
        machine = Machine(3)
        assert machine.feed(ready(2), ready(0)) == []
        (launch,) = machine.feed(ready(1))
        assert isinstance(launch, e.LaunchWorkers)
        assert [worker.rank for worker in launch.workers] == [0, 1, 2]
        assert launch.announcements == ("news 0", "news 1", "news 2")
        assert machine.phase() is Phase.RUNNING

    def test_finishes(self) -> None:
        machine = Machine().run()
        assert machine.feed(e.Returned(1)) == []
        assert machine.feed(e.Returned(0)) == [e.ReleaseWorkers(), e.SetTimer("exit")]
        assert machine.phase() is Phase.STOPPING
        assert machine.gone(0) == []
        assert machine.gone(1) == [e.End(Phase.FINISHED, ())]
        assert machine.phase() is Phase.FINISHED

    def test_a_worker_that_will_not_exit_is_killed_and_the_run_has_finished(self) -> None:
        machine = Machine(1).run()
        machine.feed(e.Returned(0))
        assert machine.feed(e.TimerFired("exit", 1)) == [e.KillWorkers()]
        assert machine.gone(0, exitcode=-9) == [e.End(Phase.FINISHED, ())]

    def test_a_worker_that_dies_after_it_returned_did_its_work(self) -> None:
        machine = Machine().run()
        machine.feed(e.Returned(0))
        assert machine.gone(0, exitcode=-11) == []
        machine.feed(e.Returned(1))
        machine.gone(1)
        assert machine.phase() is Phase.FINISHED

    def test_an_engine_that_cannot_start(self) -> None:
        machine = Machine()
        machine.feed(e.Closed(ERROR))
        assert machine.phase() is Phase.FAILED
        assert machine.kinds == [e.RecordFailure, e.End]


class TestReports:
    def test_a_report_waits_for_every_rank(self) -> None:
        machine = Machine().run()
        assert machine.feed(report(1)) == []
        (record,) = machine.feed(report(0))
        assert isinstance(record, e.Record)
        assert [r.metrics for r in record.reports] == [{"rank": 0}, {"rank": 1}]
        assert record.checkpoint is None
        assert machine.feed(e.Recorded(False)) == [e.Answer((0, 1), False)]
        assert machine.state.rows == 1

    def test_every_rank_gets_the_order_to_stop(self) -> None:
        machine = Machine().run()
        machine.report(None, None)
        assert machine.feed(e.Recorded(True)) == [e.Answer((0, 1), True)]

    def test_fewer_reports_on_one_rank(self) -> None:
        machine = Machine(3).run()
        for number in (1, 2):
            machine.report(None, None, None, number=number)
            machine.feed(e.Recorded(False))
        machine.feed(report(0, number=3), report(2, number=3))
        assert machine.feed(e.Returned(1)) == [e.SetTimer("collect")]
        (failure,) = machine.state.failures
        assert failure.rank == 1
        assert failure.error["type"] == "MismatchedReportsError"
        assert failure.error["message"] == (
            "rank 1 returned after 2 report(s) while ranks 0 and 2 reached report 3; "
            "every rank must call report() equally often."
        )

    def test_more_reports_on_one_rank(self) -> None:
        machine = Machine(3).run()
        assert machine.feed(e.Returned(0), e.Returned(2)) == []
        machine.feed(report(1))
        assert machine.phase() is Phase.STOPPING
        assert (
            "ranks 0 and 2 returned after 0 report(s) while rank 1 reached report 1"
            in (machine.state.failures[0].error["message"])
        )

    def test_a_third_rank_may_still_decide(self) -> None:
        machine = Machine(3).run()
        machine.feed(e.Returned(0), report(1))
        assert machine.phase() is Phase.RUNNING
        machine.feed(report(2))
        assert machine.phase() is Phase.STOPPING


class TestSync:
    def test_saved_recorded_committed_answered(self) -> None:
        machine = Machine().run()
        (order,) = machine.report(SYNC, SYNC)
        assert isinstance(order, e.OrderSave)
        assert (order.save.name, order.save.id, order.save.report_number) == (
            "checkpoint_000000",
            0,
            1,
        )
        assert order.plan.write == {0: ("file",), 1: ()}
        assert machine.saved(order.save.name, 1) == []
        record, commit = machine.saved(order.save.name, 0)
        assert isinstance(record, e.Record)
        assert record.checkpoint == order.save.name
        assert isinstance(commit, e.Commit)
        assert machine.feed(e.Recorded(False)) == []
        assert machine.feed(e.Committed(order.save.name)) == [e.Answer((0, 1), False)]
        assert machine.state.saves == ()

    def test_the_stop_waits_for_the_commit(self) -> None:
        machine = Machine().run()
        machine.report(SYNC, None)
        machine.saved("checkpoint_000000", 0)
        assert machine.feed(e.Recorded(True)) == []
        assert machine.feed(e.Committed("checkpoint_000000")) == [e.Answer((0, 1), True)]

    def test_only_the_ranks_with_a_checkpoint_are_waited_for(self) -> None:
        machine = Machine(3).run()
        (order,) = machine.report(None, SYNC, None)
        assert isinstance(order, e.OrderSave)
        assert order.plan.write == {1: ("file",)}
        assert machine.saved("checkpoint_000000", 1)

    def test_numbers_go_up_from_the_first(self) -> None:
        machine = Machine(1, first_checkpoint_id=7).run()
        for number in (1, 2):
            name = name_of(machine.report(SYNC, number=number))
            assert name == f"checkpoint_{6 + number:06d}"
            machine.saved(name, 0)
            machine.feed(e.Recorded(False), e.Committed(name))

    def test_a_failed_commit_fails_the_run(self) -> None:
        machine = Machine(1).run()
        machine.report(SYNC)
        machine.saved("checkpoint_000000", 0)
        machine.feed(e.Recorded(False), e.SaveFailed("checkpoint_000000", ERROR))
        assert e.KillWorkers() in machine.actions
        machine.gone(0, exitcode=-9)
        assert machine.phase() is Phase.FAILED
        assert machine.state.committed == frozenset()

    def test_a_failure_while_saving_throws_the_parts_away(self) -> None:
        machine = Machine().run()
        machine.report(SYNC, SYNC)
        machine.saved("checkpoint_000000", 0)
        machine.feed(e.Raised(1, ERROR))
        assert machine.saved("checkpoint_000000", 1) == []
        machine.gone(0, 1)
        assert e.Discard(("checkpoint_000000",)) in machine.actions
        assert machine.phase() is Phase.FAILED
        assert machine.state.rows == 0

    def test_a_commit_under_way_is_waited_for(self) -> None:
        machine = Machine(1).run()
        machine.report(SYNC)
        machine.saved("checkpoint_000000", 0)
        machine.feed(e.Recorded(False))
        assert e.End not in [type(action) for action in machine.gone(0, exitcode=-9)]
        assert machine.phase() is Phase.STOPPING
        machine.feed(e.Committed("checkpoint_000000"))
        assert machine.phase() is Phase.FAILED
        assert e.Answer not in machine.kinds
        assert machine.state.committed == {"checkpoint_000000"}

    def test_ctrl_c_gives_up_a_commit_that_alone_is_waited_for(self) -> None:
        machine = Machine().run()
        machine.saved(name_of(machine.report(SYNC, SYNC)), 0, 1)
        machine.feed(e.Interrupt())
        assert machine.gone(0, 1, exitcode=130) == []
        assert e.End not in [type(action) for action in machine.feed(e.Interrupt())]
        assert machine.feed(e.Interrupt(gives_up=True)) == [e.End(Phase.INTERRUPTED, ())]

    def test_an_interrupted_run_stays_interrupted(self) -> None:
        machine = Machine().run()
        name = name_of(machine.report(ASYNC, ASYNC))
        machine.snapshotted(name, 0, 1)
        machine.feed(e.Recorded(False), e.Interrupt())
        machine.saved(name, 0, 1)
        machine.feed(e.Returned(0), e.Returned(1))
        assert machine.gone(0, 1) == []
        assert machine.feed(e.Interrupt(gives_up=True)) == [e.End(Phase.INTERRUPTED, ())]

    def test_a_run_that_finished_has_finished_without_its_last_commit(self) -> None:
        machine = Machine().run()
        name = name_of(machine.report(ASYNC, ASYNC))
        machine.snapshotted(name, 0, 1)
        machine.feed(e.Recorded(False))
        machine.saved(name, 0, 1)
        assert machine.stop() == []
        assert machine.feed(e.Interrupt(gives_up=True)) == [e.End(Phase.FINISHED, ())]

    def test_a_commit_that_took_too_long_may_be_the_last_thing(self) -> None:
        machine = Machine(max_failures=1).run()
        name = name_of(machine.report(SYNC, SYNC))
        machine.saved(name, 0, 1)
        machine.gone(0, 1, exitcode=1)
        machine.feed(e.SaveFailed(name, ERROR))
        assert machine.kinds == [e.RecordFailure, e.StartWorkers]

    def test_no_upload_is_committed_at_once(self) -> None:
        machine = Machine().run()
        record, commit = machine.report(NO_UPLOAD, NO_UPLOAD)
        assert isinstance(record, e.Record)
        assert isinstance(commit, e.Commit)
        machine.feed(e.Recorded(False))
        assert machine.feed(e.Committed(commit.save.name)) == [e.Answer((0, 1), False)]

    def test_no_upload_is_never_thrown_away(self) -> None:
        machine = Machine(1).run()
        name = name_of(machine.report(ASYNC))
        machine.snapshotted(name, 0)
        machine.feed(e.Recorded(False), report(0, NO_UPLOAD, 2), e.Raised(0, ERROR))
        assert machine.gone(0)[0] == e.Discard((name,))
        assert machine.state.saves == ()

    def test_save_checkpoint_is_no_row_and_waits_for_nobody(self) -> None:
        machine = Machine().run()
        machine.feed(report(1))
        name = name_of(machine.feed(saving(0)))
        (commit,) = machine.saved(name, 0)
        assert isinstance(commit, e.Commit)
        assert not commit.save.is_row
        assert machine.feed(e.Committed(name)) == [e.Answer((0,), False)]
        assert machine.state.rows == 0
        (record,) = machine.feed(report(0))
        assert isinstance(record, e.Record)


class TestDirectoryNames:
    def test_a_name_of_ones_own(self) -> None:
        machine = Machine(1).run()
        assert name_of(machine.feed(report(0, SYNC, name="best"))) == "best"

    @pytest.mark.parametrize("committed", [True, False])
    def test_taken_by_an_earlier_report(self, committed: bool) -> None:
        machine = Machine(1).run()
        machine.feed(report(0, ASYNC, name="best"))
        machine.snapshotted("best", 0)
        machine.feed(e.Recorded(False))
        if committed:
            machine.saved("best", 0)
            machine.feed(e.Committed("best"))
        machine.feed(report(0, SYNC, 2, name="best"))
        assert machine.phase() is Phase.STOPPING
        assert machine.state.failures[0].error["type"] == "CheckpointError"
        assert "'best' is taken" in machine.state.failures[0].error["message"]

    def test_a_numbered_name_that_the_user_took(self) -> None:
        machine = Machine(1).run()
        machine.feed(report(0, ASYNC, name="checkpoint_000001"))
        machine.snapshotted("checkpoint_000001", 0)
        actions = machine.feed(e.Recorded(False), report(0, SYNC, 2))
        assert name_of(actions) == "checkpoint_000002"

    def test_a_users_directory_is_taken(self) -> None:
        machine = Machine(1, max_failures=1).run()
        mine = part(NO_UPLOAD)._replace(location="./checkpoint_000001/deep")
        machine.feed(e.Reported(0, Report(1, {}, mine, None, 0.0, 0.0)))
        machine.feed(e.Recorded(False), e.Committed("checkpoint_000000"))
        machine.feed(e.Raised(0, ERROR), e.Gone(0, 1, ""))
        machine.run()
        assert name_of(machine.feed(report(0, SYNC))) == "checkpoint_000002"

    def test_a_name_is_free_again_when_its_checkpoint_was_lost(self) -> None:
        machine = Machine(1, max_failures=1).run()
        machine.feed(report(0, SYNC, name="best"), e.Raised(0, ERROR))
        assert e.Discard(("best",)) in machine.gone(0)
        machine.run()
        assert name_of(machine.feed(report(0, SYNC, name="best"))) == "best"

    def test_a_name_whose_publish_may_still_arrive_is_not_used_again(self) -> None:
        machine = Machine(1, max_failures=2).run()
        machine.feed(report(0, SYNC, name="best"))
        machine.saved("best", 0)
        for attempt in (2, 3):
            machine.feed(e.SaveFailed(machine.state.saves[0].name, ERROR, timed_out=True))
            machine.gone(0)
            machine.wait_out()
            machine.run()
            again = f"best_attempt_{attempt}"
            assert name_of(machine.feed(report(0, SYNC, name="best"))) == again
            machine.saved(again, 0)


class TestAsync:
    def test_answered_before_it_is_saved(self) -> None:
        machine = Machine().run()
        name = name_of(machine.report(ASYNC, ASYNC))
        assert machine.snapshotted(name, 1) == []
        (record,) = machine.snapshotted(name, 0)
        assert isinstance(record, e.Record)
        assert machine.feed(e.Recorded(False)) == [e.Answer((0, 1), False)]
        assert machine.saved(name, 0) == []
        (commit,) = machine.saved(name, 1)
        assert isinstance(commit, e.Commit)
        assert machine.feed(e.Committed(name)) == []

    def two_under_way(self) -> Machine:
        machine = Machine().run()
        for number in (1, 2):
            name = name_of(machine.report(ASYNC, ASYNC, number=number))
            machine.snapshotted(name, 0, 1)
            machine.feed(e.Recorded(False))
        return machine

    def test_commits_keep_the_order_of_the_reports(self) -> None:
        machine = self.two_under_way()
        assert machine.saved("checkpoint_000001", 0, 1) == []
        assert name_of(machine.saved("checkpoint_000000", 0, 1)) == "checkpoint_000000"
        assert name_of(machine.feed(e.Committed("checkpoint_000000"))) == "checkpoint_000001"
        assert machine.feed(e.Committed("checkpoint_000001")) == []

    def test_a_synchronous_one_comes_after_those_before_it(self) -> None:
        machine = self.two_under_way()
        name = name_of(machine.report(SYNC, None, number=3))
        assert machine.saved(name, 0) == []
        for earlier in ("checkpoint_000000", "checkpoint_000001"):
            machine.saved(earlier, 0, 1)
            machine.feed(e.Committed(earlier))
        record, commit = machine.actions
        assert isinstance(record, e.Record)
        assert isinstance(commit, e.Commit)
        assert commit.save.name == name
        machine.feed(e.Recorded(False))
        assert machine.feed(e.Committed(name)) == [e.Answer((0, 1), False)]

    @pytest.mark.parametrize("event", [e.Raised(0, ERROR), e.Interrupt()])
    def test_a_complete_one_is_committed_while_stopping(self, event: e.Event) -> None:
        machine = self.two_under_way()
        machine.feed(event)
        assert machine.phase() is Phase.STOPPING
        assert name_of(machine.saved("checkpoint_000000", 0, 1)) == "checkpoint_000000"
        machine.gone(0, 1)
        assert machine.phase() is Phase.STOPPING
        machine.feed(e.Committed("checkpoint_000000"))
        assert machine.phase() in (Phase.FAILED, Phase.INTERRUPTED)
        assert machine.actions[0] == e.Discard(("checkpoint_000001",))

    def test_one_whose_report_was_never_recorded_is_not_committed(self) -> None:
        machine = Machine().run()
        name = name_of(machine.report(ASYNC, ASYNC))
        machine.feed(e.SnapshotPart(0, name), e.Interrupt(), e.SnapshotPart(1, name))
        assert machine.saved(name, 0, 1) == []
        machine.gone(0, 1)
        assert machine.actions == [e.Discard((name,)), e.End(Phase.INTERRUPTED, ())]
        assert machine.state.rows == 0

    def test_parts_of_a_forgotten_save_are_ignored(self) -> None:
        machine = Machine(1).run()
        assert machine.saved("checkpoint_000009", 0) == []
        assert machine.snapshotted("checkpoint_000009", 0) == []


class TestFailures:
    def test_others_get_a_moment_to_tell_theirs(self) -> None:
        machine = Machine(3).run()
        assert machine.feed(e.Raised(1, ERROR)) == [e.SetTimer("collect")]
        assert machine.feed(e.TimerFired("collect", 1)) == [e.KillWorkers()]
        machine.gone(0, 1, 2, exitcode=-9)
        record, end = machine.actions
        assert isinstance(record, e.RecordFailure)
        assert isinstance(end, e.End)
        assert [failure.rank for failure in end.failures] == [1]
        assert machine.phase() is Phase.FAILED

    def test_when_all_ranks_have_reported_an_error_nobody_waits(self) -> None:
        machine = Machine().run()
        machine.feed(e.Raised(1, ERROR))
        assert machine.feed(e.Raised(0, ERROR)) == [e.KillWorkers()]

    def test_a_rank_that_is_ending_its_tracker_gets_its_grace(self) -> None:
        machine = Machine(3).run()
        assert machine.feed(e.ClosingTrackers(0), e.Raised(1, ERROR)) == [e.SetTimer("collect")]
        assert machine.feed(e.TimerFired("collect", 1)) == [e.SetTimer("grace")]
        assert machine.feed(e.TimerFired("grace", 1)) == [e.KillWorkers()]

    def test_once_it_has_ended_nobody_is_waited_for(self) -> None:
        machine = Machine(3).run()
        machine.feed(e.ClosingTrackers(0), e.Raised(1, ERROR), e.Raised(0, ERROR))
        assert machine.feed(e.TimerFired("collect", 1)) == [e.KillWorkers()]

    def test_a_failure_is_known_before_its_tracker_is_ended(self) -> None:
        machine = Machine(3).run()
        assert machine.feed(e.ClosingTrackers(0, ERROR)) == [e.SetTimer("collect")]
        assert machine.phase() is Phase.STOPPING
        assert machine.feed(e.TimerFired("collect", 1)) == [e.SetTimer("grace")]
        assert machine.feed(e.Raised(0, ERROR)) == [e.SetTimer("collect")]
        assert machine.feed(e.TimerFired("collect", 1)) == [e.KillWorkers()]
        assert [failure.rank for failure in machine.state.failures] == [0], (
            "told twice, counted once"
        )

    def test_the_others_wait_for_the_rank_that_ends_its_tracker(self) -> None:
        machine = Machine(2).run()
        machine.feed(e.ClosingTrackers(0, ERROR))
        assert machine.feed(e.Raised(1, ERROR)) == []
        assert machine.feed(e.Raised(0, ERROR)) == [e.KillWorkers()]

    def test_who_waits_at_a_report_ends_its_tracker_when_another_fails(self) -> None:
        machine = Machine(3).run()
        machine.feed(e.TrackerOpened(0), e.TrackerOpened(1), report(0))
        let_go = e.CloseTrackers((0,))
        assert machine.feed(e.Raised(2, ERROR)) == [let_go, e.SetTimer("collect")]
        assert machine.feed(e.TimerFired("collect", 1)) == [e.SetTimer("grace")]
        # One that comes to its report now ends its own as well.
        assert machine.feed(report(1)) == [e.CloseTrackers((1,))]
        assert machine.feed(e.Returned(0)) == []
        assert machine.feed(e.Returned(1)) == [e.KillWorkers()]
        assert [failure.rank for failure in machine.state.failures] == [2]

    def test_who_has_a_tracker_open_gets_a_moment_to_notice(self) -> None:
        machine = Machine(2).run()
        machine.feed(e.TrackerOpened(0), e.Raised(1, ERROR))
        assert machine.feed(e.TimerFired("collect", 1)) == [e.SetTimer("cause")]
        assert machine.feed(report(0)) == [e.CloseTrackers((0,))]
        assert machine.feed(e.TimerFired("cause", 1)) == [e.SetTimer("grace")]
        assert machine.feed(e.Returned(0)) == [e.KillWorkers()]
        machine = Machine(2).run()
        machine.feed(e.TrackerOpened(0), e.Raised(1, ERROR), e.TimerFired("collect", 1))
        assert machine.feed(e.TimerFired("cause", 1)) == [e.KillWorkers()]

    def test_nobody_is_waited_for_who_has_nothing_open(self) -> None:
        machine = Machine(2).run()
        machine.feed(report(0))
        assert machine.feed(e.Raised(1, ERROR)) == [e.SetTimer("collect")]
        assert machine.feed(e.TimerFired("collect", 1)) == [e.KillWorkers()]
        assert machine.feed(e.TrackerOpened(0), report(0)) == []

    def test_who_is_saving_is_not_let_go(self) -> None:
        machine = Machine(2).run()
        machine.feed(e.TrackerOpened(0), report(0, SYNC), report(1, SYNC))
        assert machine.feed(e.Raised(1, ERROR)) == [e.SetTimer("collect")]

    def test_who_only_waits_for_a_save_is_let_go(self) -> None:
        machine = Machine(2).run()
        name = name_of(machine.report(ASYNC, ASYNC))
        machine.snapshotted(name, 0, 1)
        machine.feed(e.Recorded(False), e.TrackerOpened(0), report(0))
        assert machine.feed(e.Raised(1, ERROR)) == [e.CloseTrackers((0,)), e.SetTimer("collect")]
        # An error that the driver found is told as the first rank's, which is there all the same.
        machine = Machine(2).run()
        machine.feed(e.TrackerOpened(0), report(0), report(1))
        assert machine.feed(e.Raised(0, ERROR)) == [e.CloseTrackers((0,)), e.SetTimer("collect")]

    def test_a_death_says_how(self) -> None:
        machine = Machine(1)
        machine.gone(0, exitcode=-11)
        (failure,) = machine.state.failures
        assert failure.died
        assert "SIGSEGV" in summarise_error(failure.error)

    def test_the_answer_never_comes_once_it_stops(self) -> None:
        machine = Machine().run()
        machine.feed(report(0), e.Raised(1, ERROR))
        assert machine.feed(report(0)) == []

    def test_retries_until_the_limit(self) -> None:
        machine = Machine(1, max_failures=2)
        for attempt in (1, 2):
            machine.run()
            machine.feed(e.Raised(0, ERROR))
            (record, *_) = machine.gone(0)
            assert isinstance(record, e.RecordFailure)
            assert record.retry
            machine.wait_out()
            assert machine.actions[-1] == e.StartWorkers(attempt + 1, 1)
            assert machine.phase() is Phase.STARTING
        machine.run()
        machine.feed(e.Raised(0, ERROR))
        machine.gone(0)
        assert machine.phase() is Phase.FAILED
        assert machine.state.failed_attempts == 3

    def test_retries_without_limit(self) -> None:
        machine = Machine(1, max_failures=-1)
        for _ in range(20):
            machine.run()
            machine.gone(0, exitcode=1)
            machine.wait_out()
        assert machine.phase() is Phase.STARTING
        assert machine.state.attempt == 21

    def test_an_error_that_comes_at_once_again_and_again_is_retried_less_and_less_often(
        self,
    ) -> None:
        machine = Machine(1, max_failures=-1)
        delays, repeats = [], []
        for attempt in range(1, 13):
            machine.run().feed(e.Raised(0, ERROR))
            (record, _) = machine.gone(0)
            assert isinstance(record, e.RecordFailure)
            delays.append(record.delay_s)
            repeats.append(record.repeats)
            assert machine.state.attempt == attempt + 1
            machine.wait_out()
        assert delays == [0, 0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
        assert repeats == list(range(1, 13))

    def test_progress_ends_the_waiting(self) -> None:
        machine = Machine(1, max_failures=-1)
        for _ in range(3):
            machine.run().feed(e.Raised(0, ERROR))
            machine.gone(0)
            machine.wait_out()
        machine.run().row(1)
        machine.feed(e.Raised(0, ERROR))
        (record, start) = machine.gone(0)
        assert record == e.RecordFailure(machine_failures(record), True)
        assert isinstance(start, e.StartWorkers)

    def test_the_same_failure_after_the_same_reports_is_no_progress(self) -> None:
        machine = Machine(1, max_failures=-1)
        delays = []
        for _ in range(4):
            machine.run().row(1)
            machine.feed(e.Raised(0, ERROR))
            (record, _) = machine.gone(0)
            assert isinstance(record, e.RecordFailure)
            delays.append(record.delay_s)
            machine.wait_out()
        assert delays == [0, 0, 0.5, 1]
        machine.run().row(1, SYNC)  # a checkpoint: the next attempt starts further on
        machine.feed(e.Raised(0, ERROR))
        assert isinstance(machine.gone(0)[-1], e.StartWorkers)

    def test_other_failures_without_a_report_wait_too_but_are_no_repetition(self) -> None:
        machine = Machine(1, max_failures=-1)
        for exitcode in (1, 2, 3):
            machine.run()
            (record, wait) = machine.gone(0, exitcode=exitcode)
            machine.wait_out()
        assert isinstance(record, e.RecordFailure)
        assert (record.repeats, record.delay_s) == (1, 1.0)
        assert wait == e.SetTimer("retry", 1.0)

    def test_a_failure_before_the_function_is_called_is_not_retried(self) -> None:
        machine = Machine(1, max_failures=-1).run()
        machine.feed(e.Raised(0, ERROR, before_start=True))
        (record, end) = machine.gone(0)
        assert isinstance(record, e.RecordFailure)
        assert not record.retry
        assert end == e.End(Phase.FAILED, tuple(machine.state.failures))

    def test_where_the_function_was_called_before_a_failed_start_is_retried(self) -> None:
        machine = Machine(1, max_failures=-1).run()
        machine.feed(e.Raised(0, ERROR))
        machine.gone(0)
        machine.run().feed(e.Raised(0, ERROR, before_start=True))
        machine.gone(0)
        assert machine.phase() is Phase.WAITING

    def test_the_rows_of_an_earlier_driver_do_not_tell_that_the_function_starts(self) -> None:
        state, _ = RunState.new(1, FailurePolicy(-1), rows=7)
        for event in (ready(0), e.Raised(0, ERROR, before_start=True), e.Gone(0, 1, "")):
            state, _ = transition(state, event)
        assert state.phase is Phase.FAILED

    def test_a_connection_that_breaks_before_the_function_is_called_is_retried(self) -> None:
        machine = Machine(1, max_failures=1).run()
        lost = pack_error(ConnectionRefusedError("no rendezvous"))
        machine.feed(e.Raised(0, lost, before_start=True))
        assert isinstance(machine.gone(0)[-1], e.StartWorkers)

    def test_numbers_and_rows_go_on_after_a_retry(self) -> None:
        machine = Machine(1, max_failures=1).run()
        name = name_of(machine.report(SYNC))
        machine.saved(name, 0)
        machine.feed(e.Recorded(False), e.Committed(name), e.Raised(0, ERROR))
        machine.gone(0)
        machine.run()
        assert name_of(machine.report(SYNC)) == "checkpoint_000001"
        assert machine.state.rows == 1

    def test_no_timer_of_a_failed_attempt_reaches_the_next(self) -> None:
        machine = Machine(1, max_failures=1).run()
        machine.gone(0, exitcode=1)
        assert e.SetTimer not in machine.kinds
        machine.run()
        machine.feed(e.Returned(0))
        assert machine.feed(e.TimerFired("collect", 1)) == []


def machine_failures(record: e.Action) -> tuple[WorkerFailure, ...]:
    assert isinstance(record, e.RecordFailure)
    return record.failures


class TestWaiting:
    def waiting(self, **options: Any) -> Machine:
        machine = Machine(2, max_failures=-1, **options)
        for _ in range(2):
            machine.run()
            machine.gone(0, 1, exitcode=1)
        assert machine.phase() is Phase.WAITING
        return machine

    def test_ctrl_c_ends_it_at_once(self) -> None:
        machine = self.waiting()
        assert machine.feed(e.Interrupt()) == [e.End(Phase.INTERRUPTED, ())]
        assert machine.feed(e.TimerFired("retry", 3)) == []

    def test_sigterm_ends_it_at_once(self) -> None:
        machine = self.waiting()
        assert machine.feed(e.Preempt(None, 9.0)) == [e.End(Phase.PREEMPTED, ())]

    def test_timers_of_before_do_not_end_it(self) -> None:
        machine = self.waiting()
        assert machine.feed(e.TimerFired("collect", 2), e.TimerFired("grace", 3)) == []
        assert machine.feed(e.TimerFired("retry", 3)) == [e.StartWorkers(3, 2)]

    def test_the_size_is_that_of_the_end_of_the_wait(self) -> None:
        machine = self.waiting(sizes=(1, 4), capacity=2)
        machine.feed(e.CapacityChanged(4))
        assert machine.feed(e.TimerFired("retry", 3)) == [e.StartWorkers(3, 4)]
        machine = self.waiting(sizes=(1, 4), capacity=2)
        machine.feed(e.CapacityChanged(0), e.TimerFired("retry", 3))
        assert machine.phase() is Phase.FAILED


class TestInterrupt:
    def test_once_lets_workers_clean_up(self) -> None:
        machine = Machine().run()
        assert machine.feed(e.Interrupt()) == [e.InterruptWorkers(), e.SetTimer("grace")]
        machine.gone(0, 1, exitcode=130)
        assert machine.actions == [e.End(Phase.INTERRUPTED, ())]

    def test_the_grace_runs_out(self) -> None:
        machine = Machine().run()
        machine.feed(e.Interrupt())
        assert machine.feed(e.TimerFired("grace", 1)) == [e.KillWorkers()]

    def test_twice_kills(self) -> None:
        machine = Machine().run()
        machine.feed(e.Interrupt())
        assert machine.feed(e.Interrupt()) == [e.KillWorkers()]

    def test_while_starting(self) -> None:
        machine = Machine()
        machine.feed(ready(0), e.Interrupt())
        assert machine.feed(ready(1)) == []
        machine.gone(0, 1)
        assert machine.phase() is Phase.INTERRUPTED

    def test_while_finishing_it_has_finished_all_the_same(self) -> None:
        machine = Machine(1).run()
        machine.feed(e.Returned(0))
        assert machine.feed(e.Interrupt()) == [e.KillWorkers()]
        machine.gone(0, exitcode=-9)
        assert machine.phase() is Phase.FINISHED

    def test_it_wins_over_a_retry(self) -> None:
        machine = Machine(1, max_failures=-1).run()
        machine.feed(e.Raised(0, ERROR))
        assert machine.feed(e.Interrupt()) == [e.KillWorkers()]
        machine.gone(0, exitcode=-9)
        assert machine.phase() is Phase.INTERRUPTED

    def test_after_the_end_nothing_happens(self) -> None:
        machine = Machine(1).run()
        machine.feed(e.Returned(0))
        machine.gone(0)
        assert machine.feed(e.Interrupt()) == []
        assert machine.phase() is Phase.FINISHED


class TestGuard:
    found = pack_error(GuardSuspicion("loss is nan on rank 1."))
    shared = pack_error(GuardSuspicion("NaN or infinity in 2 gradient(s) of a step on rank 0."))

    def test_every_rank_comes_to_the_report_before_the_attempt_ends(self) -> None:
        machine = Machine(3).run()
        assert machine.feed(report(2)) == []
        assert machine.feed(e.Raised(0, self.shared)) == [e.SetTimer("grace")]
        assert machine.feed(e.Raised(1, self.found)) == [e.KillWorkers()]
        machine.gone(0, 1, 2)
        assert machine.phase() is Phase.FAILED, "there is no checkpoint to run it again from"
        assert "loss is nan" in first_cause(machine.state.failures).error["message"]

    def test_a_rank_that_is_fine_may_come_last(self) -> None:
        machine = Machine().run()
        assert machine.feed(e.Raised(0, self.found)) == [e.SetTimer("grace")]
        assert machine.feed(report(1)) == [e.KillWorkers()]

    def test_a_rank_that_never_comes(self) -> None:
        machine = Machine().run()
        machine.feed(e.Raised(0, self.found))
        assert machine.feed(e.TimerFired("grace", 1)) == [e.KillWorkers()]

    def test_the_step_is_run_again_once(self) -> None:
        machine = Machine(1).run()
        machine.row(1, SYNC)
        machine.feed(e.Raised(0, self.found))
        assert machine.gone(0)[-1] == e.StartWorkers(2, 1)
        assert machine.state.failed_attempts == 0
        machine.run()
        machine.feed(e.Raised(0, pack_error(GuardError("loss is nan on rank 0."))))
        machine.gone(0)
        assert machine.phase() is Phase.FAILED


class TestManyRanks:
    """Nothing grows faster than the number of ranks."""

    lost = pack_error(ConnectionResetError("Connection reset by peer"))

    def start(self, machine: Machine) -> None:
        machine.run()

    def row(self, machine: Machine) -> None:
        machine.row(1)

    def checkpoint(self, machine: Machine) -> None:
        size = machine.state.world_size
        name = name_of(machine.report(*[SYNC] * size))
        machine.feed(*(e.SavedPart(rank, name, {"file": 1}) for rank in range(size)))
        (save,) = machine.state.saves
        assert len(save.fingerprints) == size
        machine.feed(e.Recorded(False), e.Committed(name))
        assert machine.state.safe_rows == 1

    def collective(self, machine: Machine) -> None:
        size = machine.state.world_size
        machine.feed(*(e.Met(rank, "barrier()", b"") for rank in range(size)))
        assert machine.kinds == [e.ShareValue]

    def failure(self, machine: Machine) -> None:
        size = machine.state.world_size
        machine.gone(0, exitcode=-9)
        machine.feed(*(e.Raised(rank, self.lost) for rank in range(1, size)))
        self.end(machine)

    def finding(self, machine: Machine) -> None:
        """Every second rank's guard has found something, and the others come to the report."""
        size = machine.state.world_size
        machine.feed(*(e.Raised(rank, TestGuard.found) for rank in range(0, size, 2)))
        machine.feed(*(report(rank) for rank in range(1, size, 2)))
        assert machine.kinds == [e.KillWorkers]
        self.end(machine)

    def end(self, machine: Machine) -> None:
        size = machine.state.world_size
        failed = tuple(machine.state.failures)
        machine.gone(*(rank for rank in range(size) if rank not in machine.state.gone), exitcode=1)
        assert machine.actions[0] == e.RecordFailure(failed, False)

    @pytest.mark.parametrize("what", [start, row, checkpoint, collective, failure, finding])
    def test_work(self, what: Callable[[TestManyRanks, Machine], None]) -> None:
        work = []
        for size in (300, 600):
            machine = Machine(size) if what is TestManyRanks.start else Machine(size).run()
            work.append(lines_run(partial(what, self, machine)))
        assert work[0] > 300
        assert work[1] < 2.2 * work[0]


class TestReload:
    notice = e.Notice("reload")

    @pytest.mark.parametrize("mode", [SYNC, ASYNC])
    def test_stops_at_the_next_report_that_has_a_checkpoint(
        self, mode: CheckpointUploadMode
    ) -> None:
        machine = Machine(max_failures=-1).run()
        machine.row(1)
        assert machine.feed(e.Reload()) == []
        assert e.Answer((0, 1), True) in machine.row(2, mode)
        assert machine.stop() == [
            e.RecordAttemptStopped(self.notice, None),
            e.End(Phase.PREEMPTED, ()),
        ]

    def test_without_a_checkpoint_ranks_may_save_at_the_next_report(self) -> None:
        machine = Machine().run()
        assert machine.feed(e.Reload(), e.Reload()) == []
        assert machine.row(1) == [e.Answer((0, 1), False, self.notice)]
        assert machine.row(2) == [e.Answer((0, 1), True)]
        machine.stop()
        assert machine.phase() is Phase.PREEMPTED

    def test_a_failure_is_a_failure(self) -> None:
        machine = Machine().run()
        machine.feed(e.Reload(), e.Raised(1, ERROR), e.Raised(0, ERROR))
        machine.gone(0, 1)
        assert machine.phase() is Phase.FAILED
        assert machine.feed(e.Reload()) == []

    def test_the_next_attempt_stops_for_it(self) -> None:
        machine = Machine(1, max_failures=1).run()
        machine.feed(e.Reload(), e.Raised(0, ERROR))
        assert machine.gone(0)[-1] == e.StartWorkers(2, 1)
        machine.run()
        assert machine.row(1, SYNC)[-1] == e.Answer((0,), True)

    def test_while_the_next_attempt_waits(self) -> None:
        machine = Machine(1, max_failures=-1)
        for _ in range(2):
            machine.run()
            machine.feed(e.Raised(0, ERROR))
            machine.gone(0)
        assert machine.phase() is Phase.WAITING
        assert machine.feed(e.Reload()) == [e.End(Phase.PREEMPTED, ())]


class TestPreemption:
    notice = e.Notice("preemption", 1, 9.0)

    def test_is_announced_at_one_report_and_stops_at_the_next(self) -> None:
        machine = Machine().run()
        assert machine.row(1) == [e.Answer((0, 1), False)]
        assert machine.feed(e.Preempt(1, 9.0)) == [e.SetTimer("preemption")]
        assert machine.row(2) == [e.Answer((0, 1), False, self.notice)]
        assert machine.row(3, SYNC)[-1] == e.Answer((0, 1), True)
        assert machine.stop() == [e.RecordAttemptStopped(self.notice, 2), e.StartWorkers(2, 2)]
        assert machine.state.preempted_attempts == 1
        assert machine.state.failed_attempts == 0
        machine.run()
        assert machine.row(1) == [e.Answer((0, 1), False)], "it was the last attempt's"

    def test_while_a_report_is_open(self) -> None:
        machine = Machine().run()
        machine.feed(report(0), e.Preempt(1, 9.0), report(1))
        assert machine.feed(e.Recorded(False)) == [e.Answer((0, 1), False, self.notice)]

    def test_of_the_driver_ends_the_run(self) -> None:
        machine = Machine(max_failures=-1).run()
        machine.feed(e.Preempt(None, 9.0))
        machine.row(1)
        machine.row(2)
        notice = e.Notice("preemption", None, 9.0)
        assert machine.stop() == [e.RecordAttemptStopped(notice, None), e.End(Phase.PREEMPTED, ())]
        assert machine.phase() is Phase.PREEMPTED

    def test_of_the_driver_after_that_of_a_worker(self) -> None:
        machine = Machine().run()
        machine.feed(e.Preempt(1, 9.0))
        assert machine.feed(e.Preempt(None, 9.5), e.Preempt(0, 9.6)) == []
        machine.row(1)
        machine.row(2)
        machine.stop()
        assert machine.phase() is Phase.PREEMPTED

    def test_the_stop_condition_holds_first(self) -> None:
        machine = Machine(1).run()
        machine.feed(e.Preempt(0, 9.0))
        machine.report(None)
        assert machine.feed(e.Recorded(True)) == [e.Answer((0,), True)]
        machine.stop()
        assert machine.phase() is Phase.FINISHED

    def test_those_who_return_in_time_have_finished(self) -> None:
        machine = Machine().run()
        machine.feed(e.Preempt(None, 9.0))
        machine.stop()
        assert machine.phase() is Phase.FINISHED

    def test_nobody_reports_in_time(self) -> None:
        machine = Machine().run()
        machine.feed(e.Preempt(1, 9.0), report(0))
        assert machine.feed(e.TimerFired("preemption", 1)) == [e.KillWorkers()]
        assert machine.gone(0, 1, exitcode=-9)[-1] == e.StartWorkers(2, 2)

    def test_the_time_is_up_when_all_have_returned(self) -> None:
        machine = Machine().run()
        machine.feed(e.Preempt(None, 9.0), e.Returned(0), e.Returned(1))
        assert machine.feed(e.TimerFired("preemption", 1)) == [e.KillWorkers()]
        machine.gone(0, 1, exitcode=-9)
        assert machine.phase() is Phase.FINISHED

    def test_while_starting(self) -> None:
        machine = Machine()
        machine.feed(ready(0), e.Preempt(None, 9.0))
        assert machine.feed(e.TimerFired("preemption", 1)) == [e.KillWorkers()]
        machine.gone(0, 1, exitcode=-9)
        assert machine.phase() is Phase.PREEMPTED

    @pytest.mark.parametrize("rank", [1, None])
    def test_a_failure_after_the_notice_is_part_of_it(self, rank: int | None) -> None:
        machine = Machine().run()
        machine.feed(e.Preempt(rank, 9.0), e.Raised(1, ERROR), e.Raised(0, ERROR))
        machine.gone(0, 1)
        assert machine.state.failed_attempts == 0
        assert machine.phase() is (Phase.STARTING if rank else Phase.PREEMPTED)

    def test_a_worker_that_is_lost_while_the_group_leaves(self) -> None:
        machine = Machine().run()
        machine.feed(e.Preempt(1, 9.0))
        machine.row(1)
        machine.row(2)
        machine.feed(e.Returned(0))
        machine.gone(1, exitcode=-9)
        machine.gone(0)
        assert machine.phase() is Phase.STARTING
        assert (machine.state.attempt, machine.state.failed_attempts) == (2, 0)

    def test_more_often_than_allowed(self) -> None:
        machine = Machine(1, max_failures=-1, max_preemptions=1)
        for attempt in (1, 2):
            machine.run()
            assert machine.state.attempt == attempt
            machine.feed(e.Preempt(0, 9.0))
            machine.row(1)
            machine.row(2)
            machine.stop()
        assert machine.phase() is Phase.FAILED
        assert machine.kinds == [e.RecordFailure, e.End]
        (failure,) = machine.state.failures
        assert failure.error["type"] == "PreemptedError"

    def test_ctrl_c_wins(self) -> None:
        machine = Machine().run()
        machine.feed(e.Preempt(None, 9.0), e.Interrupt())
        machine.gone(0, 1, exitcode=130)
        assert machine.phase() is Phase.INTERRUPTED

    def test_after_the_end_nothing_happens(self) -> None:
        machine = Machine(1).run()
        machine.stop()
        assert machine.feed(e.Preempt(0, 9.0), e.CapacityChanged(9)) == []
        assert machine.phase() is Phase.FINISHED


class TestResize:
    resize = e.Notice("resize")

    def test_waits_for_a_checkpoint(self) -> None:
        machine = Machine(1, sizes=(1, 3), capacity=1).run()
        machine.row(1, SYNC)
        assert machine.feed(e.CapacityChanged(2)) == []
        assert machine.row(2) == [e.Answer((0,), False, self.resize)]
        assert machine.row(3) == [e.Answer((0,), False)]
        assert machine.row(4, SYNC)[-1] == e.Answer((0,), True)
        assert machine.stop() == [e.RecordAttemptStopped(self.resize, 2), e.StartWorkers(2, 2)]
        assert machine.state.failed_attempts == machine.state.preempted_attempts == 0

    def test_an_asynchronous_one_counts_once_it_is_committed(self) -> None:
        machine = Machine(1, sizes=(1, 2), capacity=1).run()
        machine.feed(e.CapacityChanged(2))
        machine.row(1)
        name = name_of(machine.report(ASYNC, number=2))
        machine.snapshotted(name, 0)
        assert machine.feed(e.Recorded(False)) == [e.Answer((0,), False)]
        assert machine.row(3) == [e.Answer((0,), False)]
        machine.saved(name, 0)
        machine.feed(e.Committed(name))
        assert machine.row(4) == [e.Answer((0,), True)]

    def test_room_that_came_while_it_started(self) -> None:
        machine = Machine(1, sizes=(1, 2), capacity=1)
        machine.feed(e.CapacityChanged(2))
        machine.run()
        assert machine.row(1) == [e.Answer((0,), False, self.resize)]

    def test_room_that_went_before_a_worker_was_up(self) -> None:
        """Workers that wait for a place that is gone would wait for ever."""
        machine = Machine(3, sizes=(1, 3), capacity=3)
        assert machine.feed(e.CapacityChanged(2)) == [e.KillWorkers()]
        actions = machine.feed(*(e.Gone(rank, -9, "") for rank in range(3)))
        assert actions == [e.RecordAttemptStopped(self.resize, 2), e.StartWorkers(2, 2)]
        assert machine.state.failed_attempts == 0
        # Below the smallest size there is nothing better than to wait.
        assert Machine(3, sizes=(2, 3), capacity=3).feed(e.CapacityChanged(1)) == []

    @pytest.mark.parametrize("warned", [True, False])
    def test_room_that_is_gone_again(self, warned: bool) -> None:
        machine = Machine(1, sizes=(1, 2), capacity=1).run()
        machine.feed(e.CapacityChanged(2))
        if warned:
            machine.row(1)
        machine.feed(e.CapacityChanged(1))
        assert machine.row(2, SYNC)[-1] == e.Answer((0,), False)
        assert machine.row(3) == [e.Answer((0,), False)]

    def test_room_that_is_gone_again_while_it_leaves(self) -> None:
        machine = Machine(2, sizes=(1, 3), capacity=2).run()
        machine.feed(e.CapacityChanged(3))
        machine.row(1)
        machine.row(2, SYNC)
        machine.feed(e.CapacityChanged(1))
        assert machine.stop()[-1] == e.StartWorkers(2, 1)

    def test_only_growth_is_planned(self) -> None:
        machine = Machine(2, sizes=(1, 3), capacity=2).run()
        machine.feed(e.CapacityChanged(1))
        assert machine.row(1, SYNC)[-1] == e.Answer((0, 1), False)
        assert machine.row(2) == [e.Answer((0, 1), False)]

    def test_a_fixed_size_stays(self) -> None:
        machine = Machine(2, max_failures=1).run()
        machine.feed(e.CapacityChanged(9))
        assert machine.row(1) == [e.Answer((0, 1), False)]
        machine.feed(e.CapacityChanged(0), e.Raised(0, ERROR))
        assert machine.gone(0, 1)[-1] == e.StartWorkers(2, 2)

    @pytest.mark.parametrize(("capacity", "size"), [(1, 1), (2, 2), (9, 3)])
    def test_after_a_loss(self, capacity: int, size: int) -> None:
        machine = Machine(3, sizes=(1, 3), capacity=3, max_failures=1).run()
        machine.feed(e.CapacityChanged(capacity))
        machine.gone(1, exitcode=-9)
        machine.feed(e.TimerFired("collect", 1))
        record, start = machine.gone(0, 2, exitcode=-9)
        assert isinstance(record, e.RecordFailure)
        assert start == e.StartWorkers(2, size)
        assert machine.state.waiting == (None,) * size
        machine.run()

    def test_too_little_is_left(self) -> None:
        machine = Machine(2, sizes=(2, 3), capacity=2, max_failures=-1).run()
        machine.feed(e.CapacityChanged(1))
        machine.gone(1, exitcode=-9)
        machine.gone(0, exitcode=-9)
        loss, record, end = machine.actions[-3:]
        assert isinstance(loss, e.RecordFailure)
        assert loss.failures[0].died
        assert isinstance(record, e.RecordFailure)
        assert isinstance(end, e.End)
        (failure,) = machine.state.failures
        assert (machine.phase(), failure.rank) == (Phase.FAILED, 1)
        assert failure.error["type"] == "InsufficientResourcesError"
        assert failure.error["message"].startswith("1 worker(s) fit now after WorkerDiedError")

    def test_too_little_is_left_for_a_resize(self) -> None:
        machine = Machine(2, sizes=(2, 3), capacity=2).run()
        machine.feed(e.CapacityChanged(3))
        machine.row(1)
        machine.row(2, SYNC)
        machine.feed(e.CapacityChanged(1))
        assert [type(action) for action in machine.stop()] == [e.RecordFailure, e.End]
        assert machine.phase() is Phase.FAILED

    def test_a_preemption_goes_before_it(self) -> None:
        machine = Machine(1, sizes=(1, 2), capacity=1).run()
        machine.feed(e.CapacityChanged(2))
        machine.row(1)
        machine.feed(e.Preempt(None, 9.0), e.CapacityChanged(1), e.CapacityChanged(2))
        notice = e.Notice("preemption", None, 9.0)
        assert machine.row(2) == [e.Answer((0,), False, notice)]
        assert machine.row(3) == [e.Answer((0,), True)]
        machine.stop()
        assert machine.phase() is Phase.PREEMPTED

    def test_a_failure_before_it_starts_with_the_new_size(self) -> None:
        machine = Machine(1, sizes=(1, 2), capacity=1, max_failures=1).run()
        machine.feed(e.CapacityChanged(2))
        machine.row(1)
        machine.feed(e.Raised(0, ERROR))
        assert machine.gone(0)[-1] == e.StartWorkers(2, 2)
        assert machine.state.failed_attempts == 1


class TestHang:
    def test_is_explained(self) -> None:
        machine = Machine(3).run()
        machine.row(1)
        machine.feed(report(1, number=2))
        assert machine.feed(e.Stuck(30.0, False)) == [e.ExplainHang((0, 2), (1,), (), 2, 30.0)]
        assert machine.phase() is Phase.RUNNING

    def test_those_who_returned_are_not_missing(self) -> None:
        machine = Machine(3).run()
        machine.feed(e.Returned(0), report(1))
        assert machine.feed(e.Stuck(30.0, False)) == [e.ExplainHang((2,), (1,), (0,), 1, 30.0)]

    def test_is_a_failure_when_it_takes_too_long(self) -> None:
        machine = Machine(max_failures=1).run()
        machine.feed(report(0))
        explain, timer = machine.feed(e.Stuck(60.0, True))
        assert isinstance(explain, e.ExplainHang)
        assert timer == e.SetTimer("cause")  # a stack takes a moment
        (failure,) = machine.state.failures
        assert (failure.rank, failure.error["type"]) == (1, "HangError")
        assert machine.feed(e.TimerFired("cause", 1)) == [e.KillWorkers()]
        assert machine.gone(0, 1, exitcode=-9)[-1] == e.StartWorkers(2, 2)

    def test_one_that_was_explained_is_ended_sooner(self) -> None:
        machine = Machine().run()
        machine.feed(report(0))
        assert machine.feed(e.Stuck(60.0, True, True)) == [e.SetTimer("collect")]

    def test_all_ranks_wait_for_storage(self) -> None:
        machine = Machine().run()
        machine.feed(*(report(rank, SYNC) for rank in range(2)))
        assert machine.feed(e.Stuck(30.0, True)) == []

    def test_nobody_waits_for_anybody(self) -> None:
        machine = Machine().run()
        explain = e.ExplainHang((0, 1), (), (), None, 30.0, 2.0)
        assert machine.feed(e.Stuck(30.0, False, longest=2.0)) == [explain]
        assert machine.feed(e.Stuck(60.0, True, True)) == [e.SetTimer("collect")]
        (failure,) = machine.state.failures
        assert failure.error["message"] == (
            "ranks 0 and 1 did not come to a report within 60.0 s; their stacks are in their logs."
        )

    def test_a_rank_alone_has_time_to_write_its_stack(self) -> None:
        machine = Machine(1).run()
        explain, timer = machine.feed(e.Stuck(60.0, True))
        assert isinstance(explain, e.ExplainHang)
        assert timer == e.SetTimer("cause")
        assert machine.feed(e.TimerFired("cause", 1)) == [e.KillWorkers()]

    def test_a_rank_has_returned_and_another_has_not(self) -> None:
        machine = Machine().run()
        machine.feed(e.Returned(1))
        assert machine.feed(e.Stuck(30.0, False)) == [e.ExplainHang((0,), (), (1,), None, 30.0)]
        machine.feed(e.Stuck(60.0, True, True))
        (failure,) = machine.state.failures
        assert failure.error["message"] == (
            "rank 0 did not come to a report within 60.0 s; rank 1 had returned; its stack is in "
            "its log."
        )

    def test_a_rank_that_does_not_start(self) -> None:
        machine = Machine()
        machine.feed(ready(0))
        explain = e.ExplainHang((1,), (), (), None, 30.0, None, True, "it is stopped")
        assert machine.feed(e.Stuck(30.0, False, detail="it is stopped")) == [explain]
        assert machine.feed(e.Stuck(60.0, True, detail="it is stopped")) == [e.SetTimer("collect")]
        (failure,) = machine.state.failures
        assert failure.rank == 1
        assert failure.error["message"] == "rank 1 has not started within 60.0 s (it is stopped)."

    def test_while_stopping(self) -> None:
        machine = Machine(3).run()
        machine.feed(report(0), e.Raised(1, ERROR))
        assert machine.feed(e.Stuck(30.0, True)) == []


class TestIllegal:
    @pytest.mark.parametrize("event", [report(0), e.Returned(0)])
    def test_before_everyone_is_up(self, event: e.Event) -> None:
        with pytest.raises(IllegalTransition, match=r"while starting .*before it: rank 1 ready"):
            Machine().feed(ready(1), event)

    def test_ready_twice(self) -> None:
        with pytest.raises(IllegalTransition, match="Ready"):
            Machine().feed(ready(0), ready(0))

    def test_two_reports_without_an_answer(self) -> None:
        with pytest.raises(IllegalTransition, match="while running"):
            Machine().run().feed(report(0), report(0))

    def test_a_commit_of_nothing(self) -> None:
        with pytest.raises(IllegalTransition, match="Committed"):
            Machine().run().feed(e.Committed("checkpoint_000000"))


def state_report(rank: int, number: int = 1) -> e.Reported:
    checkpoint = part(ASYNC)._replace(is_state=True)
    return e.Reported(rank, Report(number, {"rank": rank}, checkpoint, None, 0.0, 0.0))


class TestTrainingStates:
    def machine(self, every: int = 1) -> Machine:
        machine = Machine(2)
        machine.state = machine.state._replace(every=every, policy=FailurePolicy(3))
        return machine.run()

    def snapshot(self, machine: Machine, number: int) -> str:
        """A state up to its answer, not on storage yet."""
        name = name_of(machine.feed(state_report(0, number), state_report(1, number)))
        machine.snapshotted(name, 0, 1)
        machine.feed(e.Recorded(False))
        return name

    def test_the_next_waits_until_the_memory_is_free(self) -> None:
        machine = self.machine()
        name = self.snapshot(machine, 1)
        assert machine.feed(state_report(0, 2), state_report(1, 2)) == []
        machine.saved(name, 0, 1)
        (order,) = machine.feed(e.Committed(name))
        assert isinstance(order, e.OrderSave)
        assert order.save.name == "checkpoint_000001"

    def test_one_that_is_not_due_is_a_row_without_a_checkpoint(self) -> None:
        machine = self.machine(every=2)
        (record,) = machine.feed(state_report(0), state_report(1))
        assert record == e.Record(record.reports, None) if isinstance(record, e.Record) else False
        assert machine.feed(e.Recorded(False)) == [e.Answer((0, 1), False)]
        assert name_of(machine.feed(state_report(0, 2), state_report(1, 2)))

    def test_one_that_must_not_wait_is_always_saved(self) -> None:
        machine = self.machine(every=9)
        rank, report = state_report(0)
        assert report.checkpoint is not None
        due = report._replace(checkpoint=report.checkpoint._replace(is_due=True))
        assert name_of(machine.feed(e.Reported(rank, due), state_report(1)))

    def test_a_stop_saves_first(self) -> None:
        machine = self.machine(every=9)
        machine.feed(state_report(0), state_report(1))
        actions = machine.feed(e.Recorded(True))
        name = name_of(actions)
        assert machine.snapshotted(name, 0, 1) == [e.Answer((0, 1), True)]

    def test_a_sealed_copy_outlives_its_ranks(self) -> None:
        machine = self.machine()
        name = self.snapshot(machine, 1)
        machine.feed(e.SealedPart(0, name), e.SealedPart(1, name))
        actions = machine.gone(0, 1, exitcode=-9)
        assert [a.save.name for a in actions if isinstance(a, e.Adopt)] == [name]
        assert e.StartWorkers(2, 2) in actions
        assert not [a for a in actions if isinstance(a, e.Discard)]
        machine.feed(e.Committed(name))
        assert machine.state.saves == ()
        assert name in machine.state.committed

    def test_a_copy_that_is_not_sealed_everywhere_is_discarded(self) -> None:
        machine = self.machine()
        name = self.snapshot(machine, 1)
        machine.feed(e.SealedPart(0, name))
        actions = machine.gone(0, 1, exitcode=-9)
        assert e.Discard((name,)) in actions
        assert not [a for a in actions if isinstance(a, e.Adopt)]

    def test_a_run_that_ends_waits_for_its_last_state(self) -> None:
        machine = self.machine()
        machine.state = machine.state._replace(policy=FailurePolicy(0))
        name = self.snapshot(machine, 1)
        machine.feed(e.SealedPart(0, name), e.SealedPart(1, name))
        assert not [a for a in machine.gone(0, 1, exitcode=-9) if isinstance(a, e.End)]
        assert machine.phase() is Phase.STOPPING
        assert [a.phase for a in machine.feed(e.Committed(name)) if isinstance(a, e.End)]

    def test_one_that_cannot_be_written_is_dropped(self) -> None:
        machine = self.machine()
        name = self.snapshot(machine, 1)
        assert machine.feed(e.SaveDropped(0, name, ERROR)) == []
        assert machine.saved(name, 1) == [e.Discard((name,))]
        assert machine.phase() is Phase.RUNNING

    def lost(self, machine: Machine, number: int = 1) -> str:
        """A state that is complete in memory, and could not be written."""
        name = self.snapshot(machine, number)
        machine.feed(e.SealedPart(0, name), e.SealedPart(1, name), e.SaveDropped(0, name, ERROR))
        assert machine.saved(name, 1) == [e.Discard((name,), in_memory=True)]
        return name

    def test_the_last_one_is_written_again_at_the_end(self) -> None:
        machine = self.machine()
        name = self.lost(machine)
        assert [type(action) for action in machine.stop()] == [e.Adopt]
        assert machine.feed(e.Committed(name)) == [e.End(Phase.FINISHED, ())]

    def test_a_run_whose_last_state_is_lost_fails(self) -> None:
        machine = self.machine()
        machine.state = machine.state._replace(policy=FailurePolicy(0))
        name = self.lost(machine)
        machine.stop()
        *_, failure, end = machine.feed(e.SaveFailed(name, ERROR))
        assert isinstance(end, e.End)
        assert end.phase is Phase.FAILED
        assert isinstance(failure, e.RecordFailure)
        text = summarise_error(failure.failures[0].error)
        assert f"the last state, {name}, could not be saved" in text

    def test_a_run_whose_last_state_was_not_even_copied_fails(self) -> None:
        machine = self.machine()
        machine.state = machine.state._replace(policy=FailurePolicy(0))
        name = name_of(machine.feed(state_report(0), state_report(1)))
        machine.snapshotted(name, 0)
        machine.feed(e.SaveDropped(1, name, ERROR), e.Recorded(False))
        machine.saved(name, 0)
        assert [type(a) for a in machine.stop()] == [e.RecordFailure, e.End]
        assert machine.phase() is Phase.FAILED

    def test_a_newer_state_takes_its_place(self) -> None:
        machine = self.machine()
        name = self.lost(machine)
        discard, order = machine.feed(state_report(0, 2), state_report(1, 2))
        assert discard == e.Discard((name,))
        assert isinstance(order, e.OrderSave)
        assert machine.state.lost is None

    def test_the_next_attempt_starts_from_it(self) -> None:
        machine = self.machine()
        name = self.lost(machine)
        actions = machine.gone(0, 1, exitcode=-9)
        assert [a.save.name for a in actions if isinstance(a, e.Adopt)] == [name]
        assert e.StartWorkers(2, 2) in actions
        # It cannot be written now, either: the copy stays, and is tried again.
        assert machine.feed(e.SaveFailed(name, ERROR)) == [e.Discard((name,), in_memory=True)]
        machine.run()
        assert [type(action) for action in machine.stop()] == [e.Adopt]
        # Of a copy that has changed nothing is left to try.
        actions = machine.feed(e.SaveFailed(name, ERROR, torn=True))
        assert e.Discard((name,)) in actions
        assert machine.state.attempt == 3
        machine.run()
        assert not [action for action in machine.stop() if isinstance(action, e.Adopt)]

    def test_the_first_of_an_attempt_waits_for_the_one_that_it_started_from(self) -> None:
        machine = self.machine()
        name = self.snapshot(machine, 1)
        machine.feed(e.SealedPart(0, name), e.SealedPart(1, name))
        machine.gone(0, 1, exitcode=-9)
        machine.run()
        assert machine.feed(state_report(0), state_report(1)) == []
        (order,) = machine.feed(e.Committed(name))
        assert isinstance(order, e.OrderSave)

    def sealed(self, machine: Machine) -> str:
        """A state that is in memory and staged, so that its commit is ordered."""
        name = self.snapshot(machine, 1)
        machine.feed(e.SealedPart(0, name), e.SealedPart(1, name))
        assert [type(action) for action in machine.saved(name, 0, 1)] == [e.Commit]
        return name

    def test_one_that_cannot_be_published_costs_a_checkpoint_and_not_the_run(self) -> None:
        machine = self.machine()
        name = self.sealed(machine)
        assert machine.feed(e.SaveFailed(name, ERROR)) == [e.Discard((name,), in_memory=True)]
        assert machine.phase() is Phase.RUNNING
        assert [type(action) for action in machine.stop()] == [e.Adopt]
        assert machine.feed(e.Committed(name)) == [e.End(Phase.FINISHED, ())]

    def test_what_waited_for_it_is_committed(self) -> None:
        machine = self.machine()
        name = self.sealed(machine)
        machine.feed(report(0, ASYNC, number=2), report(1, ASYNC, number=2))
        machine.snapshotted("checkpoint_000001", 0, 1)
        machine.feed(e.Recorded(False))
        assert machine.saved("checkpoint_000001", 0, 1) == []
        _, commit = machine.feed(e.SaveFailed(name, ERROR))
        assert isinstance(commit, e.Commit)
        assert commit.save.name == "checkpoint_000001"

    def test_storage_that_does_not_answer_ends_the_attempt(self) -> None:
        machine = self.machine()
        name = self.sealed(machine)
        machine.feed(e.SaveFailed(name, ERROR, timed_out=True))
        assert machine.phase() is Phase.STOPPING

    def test_one_that_is_lost_is_not_needed_once_a_newer_one_arrives(self) -> None:
        machine = self.machine()
        name = self.snapshot(machine, 1)
        machine.feed(e.SealedPart(0, name), e.SealedPart(1, name))
        (adopt,) = [a for a in machine.gone(0, 1, exitcode=-9) if isinstance(a, e.Adopt)]
        machine.feed(e.SaveFailed(name, ERROR, timed_out=True))
        machine.run()
        newer = adopt.save._replace(name="checkpoint_newer", id=adopt.save.id + 1)
        assert machine.feed(e.Arrived(newer)) == [e.Discard((name,))]
        assert machine.stop() == [e.End(Phase.FINISHED, ())]

    def test_one_that_arrives_late_is_not_lost(self) -> None:
        machine = self.machine()
        name = self.snapshot(machine, 1)
        machine.feed(e.SealedPart(0, name), e.SealedPart(1, name))
        (adopt,) = [a for a in machine.gone(0, 1, exitcode=-9) if isinstance(a, e.Adopt)]
        machine.feed(e.SaveFailed(name, ERROR, timed_out=True))
        machine.run()
        older = adopt.save._replace(name="checkpoint_older", id=adopt.save.id - 1)
        assert machine.feed(e.Arrived(older)) == []
        assert machine.state.lost is not None
        assert machine.feed(e.Arrived(adopt.save)) == []
        assert machine.state.lost is None
        assert name in machine.state.committed
        assert machine.state.safe_rows == 1
        assert machine.stop() == [e.End(Phase.FINISHED, ())]
