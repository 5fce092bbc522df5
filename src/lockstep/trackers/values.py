"""What trackers are told of a run: its numbers, its parameters, and names that last."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping
from typing import Any, Literal

from lockstep.callback import TrialSnapshot
from lockstep.metrics import AUTOMATIC_KEYS, CHARTED_KEYS, flatten

__all__ = ["Outcome", "numbers_in", "outcome_of", "parameters_in", "report_time", "run_key"]

Outcome = Literal["finished", "failed", "stopped"]
"""How a run ended; stopped: interrupted or preempted, so that it can be restored."""

# No chart is about these.
_BOOKKEEPING = AUTOMATIC_KEYS - CHARTED_KEYS


def numbers_in(
    result: Mapping[str, Any], excludes: Collection[str] = ()
) -> dict[str, int | float | bool]:
    """The numbers of a row, nested keys joined by ``/``, without the bookkeeping of each row."""
    kept = {
        key: value
        for key, value in result.items()
        if key not in _BOOKKEEPING and key not in excludes
    }
    return {
        key: value
        for key, value in flatten(kept).items()
        if isinstance(value, (int, float)) and key not in excludes
    }


def parameters_in(config: Mapping[str, Any], excludes: Collection[str] = ()) -> dict[str, Any]:
    """A config's leaves, nested keys joined by ``/``; what is no plain value, as its repr."""
    kept = {key: value for key, value in config.items() if key not in excludes}
    return {
        str(key): value if isinstance(value, (str, int, float, bool)) else repr(value)
        for key, value in flatten(kept).items()
        if key not in excludes
    }


def report_time(result: Mapping[str, Any]) -> float:
    """When a row was reported, in seconds since the epoch."""
    now = time.time()
    stamp = result.get("timestamp")
    # The row has whole seconds only: now is better, unless the row has waited.
    return float(stamp) if isinstance(stamp, (int, float)) and now - stamp > 2 else now


def outcome_of(trial: TrialSnapshot, failed: bool) -> Outcome:
    """How a trial ended."""
    if failed:
        return "failed"
    return "stopped" if trial.stopped else "finished"


def run_key(experiment_name: str, trial_id: str) -> str:
    """32 hexadecimal digits that name this run, the same after every restart."""
    return hashlib.sha256(f"{experiment_name}/{trial_id}".encode()).hexdigest()[:32]
