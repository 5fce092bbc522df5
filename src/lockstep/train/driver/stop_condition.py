"""``RunConfig(stop=…)``: whether a row ends the run."""

from __future__ import annotations

from typing import Any

from lockstep.config import StopCondition
from lockstep.errors import StopConditionError
from lockstep.metrics import look_up

__all__ = ["reaches"]


def reaches(stop: StopCondition | None, trial_id: str, row: dict[str, Any]) -> bool:
    """Whether a row meets a stop condition.

    Raises:
        StopConditionError: the condition is the user's own function, and it raised.
    """
    if stop is None:
        return False
    if callable(stop):
        try:
            return bool(stop(trial_id, dict(row)))
        except Exception as error:
            text = f"RunConfig(stop=…) raised {type(error).__name__}: {error}."
            raise StopConditionError(text) from error
    values = ((look_up(row, key), bound) for key, bound in stop.items())
    return any(isinstance(value, (int, float)) and value >= bound for value, bound in values)
