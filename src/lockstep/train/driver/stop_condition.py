"""``RunConfig(stop=…)``: whether a row ends the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.config import StopCondition
from lockstep.errors import StopConditionError
from lockstep.metrics import look_up

__all__ = ["call_condition", "reaches"]


def reaches(stop: StopCondition | None, trial_id: str, row: dict[str, Any]) -> bool:
    """Whether a row meets a stop condition.

    Raises:
        StopConditionError: the condition is the user's own function, and it raised.
    """
    if stop is None:
        return False
    if callable(stop):
        return call_condition(stop, trial_id, dict(row))
    values = ((look_up(row, key), bound) for key, bound in stop.items())
    return any(isinstance(value, (int, float)) and value >= bound for value, bound in values)


def call_condition(condition: Callable[..., object], *arguments: Any) -> bool:
    """The answer of the user's own function.

    Raises:
        StopConditionError: the function raised.
    """
    try:
        return bool(condition(*arguments))
    except Exception as error:
        text = f"RunConfig(stop=…) raised {type(error).__name__}: {error}."
        raise StopConditionError(text) from error
