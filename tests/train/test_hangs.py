"""When a run that does not move is noticed; the clock is the test's."""

from __future__ import annotations

from typing import Any

from lockstep.train.hangs import HangWatch
from lockstep.train.state import RunState


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
    assert fatal.told


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
