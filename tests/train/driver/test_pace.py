"""When a state is saved."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.config import CheckpointConfig, seconds_of
from lockstep.train.driver.pace import Pace


def test_without_a_config_every_report_is_saved() -> None:
    assert Pace.of(CheckpointConfig()).reports == 1
    assert Pace.of(CheckpointConfig(every=7)).reports == 7


def test_a_time() -> None:
    pace = Pace.of(CheckpointConfig(every="5min"))
    assert [now for now in range(0, 1000, 100) if pace.due(float(now))] == [300, 600, 900]


def test_auto_follows_cost_and_failures() -> None:
    pace = Pace.of(CheckpointConfig(every="auto"))
    assert pace.due(100.0)
    pace.took(100.0, 0.05)
    calm = pace.interval_s(100.0)
    assert 30 < calm < 50  # sqrt(2 · 0.05 s · 4 h)
    assert not pace.due(100.0 + calm - 1)
    assert pace.due(100.0 + calm + 1)
    for _ in range(9):
        pace.failed()
    assert pace.interval_s(100.0) < calm / 3


def test_auto_keeps_to_the_bound() -> None:
    pace = Pace.of(CheckpointConfig(every="auto", max_overhead=0.01))
    assert pace.due(0.0)
    pace.took(1.0, 1000.0)
    assert pace.interval_s(1.0) >= 1000.0 / 0.01
    quick = Pace.of(CheckpointConfig(every="auto"))
    assert quick.due(0.0)
    quick.took(0.0, 0.001)
    quick.wrote(600.0)
    assert quick.interval_s(600.0) >= 1200.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5min", 300), ("1.5 h", 5400), ("2 hours", 7200), ("90 sec", 90)],
)
def test_times(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("every", [0, -1, True, 1.5, "", "often", "5 parsecs", "0s", "-1min"])
def test_what_is_no_interval_is_refused(every: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="every"):
        CheckpointConfig(every=every)


@pytest.mark.parametrize("share", [0, -1, 2, "a", None])
def test_what_is_no_share_is_refused(share: Any) -> None:
    with pytest.raises(ValueError, match="max_overhead"):
        CheckpointConfig(max_overhead=share)


def test_auto_does_not_wait_for_the_state_before() -> None:
    auto, fixed = Pace.of(CheckpointConfig(every="auto")), Pace.of(CheckpointConfig(every="1s"))
    assert auto.due(0.0)
    assert not fixed.due(0.0)
    assert not auto.due(1e6, is_writing=True)
    assert auto.due(1e6)
    # Who gives an interval wants it kept: the report waits.
    assert fixed.due(1e6, is_writing=True)
