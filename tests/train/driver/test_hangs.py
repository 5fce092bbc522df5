"""When a run that makes no progress is noticed; the clock is the test's."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.config import CheckpointUploadMode
from lockstep.engine.base import WorkerInfo
from lockstep.train.driver.events import Phase, Save
from lockstep.train.driver.hangs import HangWatch
from lockstep.train.driver.state import RunState


def state(**fields: Any) -> RunState:
    return RunState(2, **{"phase": Phase.RUNNING, "attempt": 1, "rows": 3, **fields})


def waiting(**fields: Any) -> RunState:
    return state(arrived=1, **fields)


def test_a_warning_once_then_the_timeout() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=8.0)
    assert watch.interval_s == 1.0
    assert [watch.stuck(waiting(), float(now)) for now in range(4)] == [None] * 4
    warning = watch.stuck(waiting(), 4.0)
    assert warning is not None
    assert not warning.fatal
    assert watch.stuck(waiting(), 5.0) is None
    fatal = watch.stuck(waiting(), 8.0)
    assert fatal is not None
    assert fatal.fatal
    assert fatal.warned


def test_progress_starts_the_clock_again() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=None)
    for now, logged, moved in (
        (0.0, 0, waiting()),
        (3.9, 0, waiting(rows=4)),
        (7.8, 1, waiting(rows=4)),
        (11.7, 1, waiting(rows=4, returned=frozenset({1}))),
    ):
        assert watch.stuck(moved, now, logged) is None
    still = waiting(rows=4, returned=frozenset({1}))
    assert watch.stuck(still, 15.6, 1) is None
    assert watch.stuck(still, 15.7, 1) is not None


@pytest.mark.parametrize("rows", [0, 1, 2, 9])
def test_nobody_waits_and_nothing_happens(rows: int) -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=8.0)
    for row in range(rows + 1):  # no report takes long
        assert watch.stuck(state(rows=row), float(row)) is None
    assert watch.stuck(state(rows=rows), rows + 3.9) is None
    warning = watch.stuck(state(rows=rows), rows + 4.0)
    assert warning is not None
    assert not warning.fatal
    fatal = watch.stuck(state(rows=rows), rows + 8.0)
    assert fatal is not None
    assert fatal.fatal


def test_a_rank_has_returned_and_the_other_does_nothing() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=None)
    for now in range(0, 90, 30):  # slow before, which does not matter: the other rank is gone
        watch.stuck(state(rows=now), float(now))
    returned = state(rows=60, returned=frozenset({0}))
    assert watch.stuck(returned, 61.0) is None
    assert watch.stuck(returned, 65.0) is not None


@pytest.mark.parametrize("arrived", [0, 2])
def test_ranks_wait_for_storage(arrived: int) -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=4.0)
    stored = saving(0)._replace(arrived=arrived)
    watch.stuck(stored, 0.0)
    assert watch.stuck(stored, 100.0) is None
    assert watch.stuck(state(), 101.0) is None
    assert watch.stuck(state(), 105.0) is not None


def test_switched_off() -> None:
    assert HangWatch(None, None).interval_s is None


def test_workers_that_do_not_start_have_a_time_of_their_own() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=8.0, start_s=60.0)
    up = WorkerInfo(0, 1, "host", "127.0.0.1")

    def starting(*workers: WorkerInfo | None) -> RunState:
        return state(phase=Phase.STARTING, workers=workers)

    assert watch.stuck(starting(None, None), 0.0) is None
    assert watch.stuck(starting(up, None), 3.0) is None
    warning = watch.stuck(starting(up, None), 7.0)
    assert warning is not None
    assert not warning.fatal
    assert watch.stuck(starting(up, None), 62.9) is None
    fatal = watch.stuck(starting(up, None), 63.0)
    assert fatal is not None
    assert fatal.fatal


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.WAITING])
def test_an_attempt_that_is_over(phase: Phase) -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=8.0, start_s=8.0)
    watch.stuck(waiting(phase=phase), 0.0)
    assert watch.stuck(waiting(phase=phase), 100.0) is None


def saving(number: int) -> RunState:
    save = Save("best", number, CheckpointUploadMode.SYNC, (), 1, frozenset(), frozenset({0}))
    return state(saves=(save,))


def test_a_save_of_the_same_name_has_a_clock_of_its_own() -> None:
    watch = HangWatch(warning_s=None, timeout_s=None, storage_s=4.0)
    assert watch.stalled(saving(0), 0.0) is None
    given_up = watch.stalled(saving(0), 4.0)
    assert given_up is not None
    assert given_up.fatal
    assert watch.stalled(saving(1), 5.0) is None
    assert watch.stalled(saving(1), 8.9) is None
    assert watch.stalled(saving(1), 9.0) is not None


def test_silence_is_judged_by_the_pace_of_the_run() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=None)
    for now, rows in ((-9.0, 3), (1.0, 4), (3.0, 5), (4.0, 6)):
        assert watch.stuck(state(rows=rows), now) is None
    assert watch.stuck(state(rows=6), 43.9) is None  # 20 times the longest, which took 2 s
    told = watch.stuck(state(rows=6), 44.0)
    assert told is not None
    assert (told.seconds, told.longest) == (40.0, 10.0)
    assert watch.stuck(state(rows=6), 1000.0) is None  # told once
    assert watch.stuck(state(rows=7), 1001.0) is None
    assert watch.stuck(state(rows=7), 2000.0) is None  # so long a step is known now


def test_slow_reports_give_one_warning() -> None:
    watch = HangWatch(warning_s=30.0, timeout_s=None)
    told = [
        now
        for now in range(0, 6000, 5)
        if watch.stuck(state(rows=now // 600), float(now)) is not None
    ]
    assert told == [300]


def test_another_attempt_has_a_pace_of_its_own() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=None)
    for now, rows in ((0.0, 3), (100.0, 4), (200.0, 5)):
        watch.stuck(state(rows=rows), now)
    assert watch.stuck(state(rows=5, attempt=2), 300.0) is None
    assert watch.stuck(state(rows=5, attempt=2), 339.0) is None  # a long first epoch
    assert watch.stuck(state(rows=5, attempt=2), 340.0) is not None


def test_a_timeout_says_what_a_hang_is_before_the_first_report() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=8.0)
    assert watch.stuck(state(), 0.0) is None
    assert watch.stuck(state(), 4.0) is not None
