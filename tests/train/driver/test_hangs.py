"""When a run that does not move is noticed; the clock is the test's."""

from __future__ import annotations

from typing import Any

from lockstep.config import CheckpointUploadMode
from lockstep.train.driver.events import Phase, Save
from lockstep.train.driver.hangs import HangWatch
from lockstep.train.driver.state import RunState


def state(**fields: Any) -> RunState:
    return RunState(2, **{"attempt": 1, "rows": 3, "arrived": 1, **fields})


def test_a_warning_once_then_the_timeout() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=8.0)
    assert watch.interval_s == 1.0
    assert [watch.stuck(state(), float(now)) for now in range(4)] == [None] * 4
    warning = watch.stuck(state(), 4.0)
    assert warning is not None
    assert not warning.fatal
    assert watch.stuck(state(), 5.0) is None
    fatal = watch.stuck(state(), 8.0)
    assert fatal is not None
    assert fatal.fatal
    assert fatal.warned


def test_a_report_that_moves_starts_the_clock_again() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=None)
    watch.stuck(state(), 0.0)
    watch.stuck(state(rows=4), 3.9)
    assert watch.stuck(state(rows=4), 7.8) is None
    assert watch.stuck(state(rows=4), 8.0) is not None


def test_nobody_waiting_is_no_hang() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=4.0)
    for arrived in (0, 2):
        watch.stuck(state(arrived=arrived), 0.0)
        assert watch.stuck(state(arrived=arrived), 100.0) is None


def test_switched_off() -> None:
    assert HangWatch(None, None).interval_s is None


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


def running(**fields: Any) -> RunState:
    return state(**{"phase": Phase.RUNNING, "arrived": 0, **fields})


def test_silence_is_told_by_the_pace_of_the_run() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=None)
    for now, rows in ((-99.0, 3), (1.0, 4), (3.0, 5), (4.0, 6)):  # the first takes long
        assert watch.silent(running(rows=rows), now) is None
    assert watch.silent(running(rows=6), 43.9) is None  # 20 times the longest, which took 2 s
    assert watch.silent(running(rows=6), 44.0) == (40.0, 2.0)
    assert watch.silent(running(rows=6), 1000.0) is None  # told once
    assert watch.silent(running(rows=7), 1001.0) is None
    assert watch.silent(running(rows=7), 2000.0) is None  # so long a step is known now


def test_silence_is_no_less_than_some_warnings_long() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=None)
    for step in range(8):
        watch.silent(running(rows=3 + step), step / 10)
    assert watch.silent(running(rows=10), 0.7 + 15.9) is None
    assert watch.silent(running(rows=10), 0.7 + 16.0) is not None


def test_a_run_whose_pace_is_not_known_may_take_its_time() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=None)
    for now, rows in ((0.0, 3), (1.0, 4), (2.0, 5)):
        watch.silent(running(rows=rows), now)
    assert watch.silent(running(rows=5), 1e6) is None
    assert watch.silent(running(rows=5, attempt=2), 1e6 + 1) is None
    assert watch.silent(running(rows=5, attempt=2), 2e6) is None


def test_somebody_who_waits_is_not_silence() -> None:
    watch = HangWatch(warning_s=4.0, timeout_s=None)
    for now in range(10):
        watch.silent(running(rows=3 + now), float(now))
    assert watch.silent(running(rows=12, arrived=1), 900.0) is None
    assert watch.silent(running(rows=12), 901.0) is None
