"""Reading results the way schedulers compare them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lockstep.checks import is_number
from lockstep.metrics import look_up

__all__ = ["check_positive", "quantile", "read_score", "read_time"]


def quantile(ordered: list[float], share: float) -> float:
    """The value below which this share of the (sorted) values lies, between two of them."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    if ordered[below] == ordered[above]:  # two infinities have no difference
        return ordered[below]
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def read_time(result: Mapping[str, Any], time_attr: str) -> float | None:
    """How far a trial is, None if its result does not say."""
    value = look_up(result, time_attr)
    if not is_number(value) or math.isnan(value):
        return None
    return float(value)


def read_score(result: Mapping[str, Any], metric: str | None, mode: str | None) -> float | None:
    """The metric, signed so that more is better; NaN is worse than anything. None without one."""
    value = look_up(result, metric) if metric else None
    if not is_number(value):
        return None
    if math.isnan(value):
        return -math.inf
    return float(value) if mode == "max" else -float(value)


def check_positive(owner: str, name: str, value: object) -> None:
    """Raise unless it is a finite number above 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{owner}({name}={value!r}): expected a finite number above 0.")
