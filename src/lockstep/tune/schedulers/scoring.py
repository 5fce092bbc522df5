"""Reading times and scores from results, for schedulers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lockstep.checks import is_number
from lockstep.metrics import look_up

__all__ = ["quantile", "read_score", "read_time"]


def quantile(ordered: list[float], share: float) -> float:
    """The quantile of sorted values, interpolated linearly."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    if ordered[below] == ordered[above]:  # two infinities cannot be subtracted
        return ordered[below]
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def read_time(result: Mapping[str, Any], time_attr: str) -> float | None:
    """A trial's progress; None if the result has no such number."""
    value = look_up(result, time_attr)
    if not is_number(value) or math.isnan(value):
        return None
    return float(value)


def read_score(result: Mapping[str, Any], metric: str | None, mode: str | None) -> float | None:
    """The metric, signed so that more is better; NaN is the worst. None if it is missing."""
    value = look_up(result, metric) if metric else None
    if not is_number(value):
        return None
    # A trial whose loss has become NaN must lose every comparison. NaN itself compares as equal to
    # nothing, and sorting would depend on the order.
    if math.isnan(value):
        return -math.inf
    return float(value) if mode == "max" else -float(value)
