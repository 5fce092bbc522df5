"""What trackers record of a run: its numbers, parameters and outcome, and a lasting key."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping
from typing import Any, Literal

from lockstep.callback import TrialSnapshot
from lockstep.metrics import AUTOMATIC_KEYS, CHARTED_KEYS, flatten

__all__ = ["Outcome", "flat_parameters", "numeric_metrics", "outcome_of", "report_time", "run_key"]

Outcome = Literal["finished", "failed", "stopped"]
"""How a run ended. "stopped": it was interrupted or preempted, and can be restored."""

# Automatic keys that make no useful chart.
_BOOKKEEPING = AUTOMATIC_KEYS - CHARTED_KEYS


def numeric_metrics(
    result: Mapping[str, Any], excludes: Collection[str] = ()
) -> dict[str, int | float | bool]:
    """Return the numbers of a row, nested keys joined by ``/``, without most automatic keys."""
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


def flat_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's leaves, nested keys joined by ``/``; objects become their repr."""
    return {
        str(key): value if isinstance(value, (str, int, float, bool)) else repr(value)
        for key, value in flatten(config).items()
    }


def report_time(result: Mapping[str, Any]) -> float:
    """Return when a row was reported, in seconds since the epoch."""
    now = time.time()
    stamp = result.get("timestamp")
    # The row's timestamp has full seconds only: now is more exact, unless the row had to wait.
    return float(stamp) if isinstance(stamp, (int, float)) and now - stamp > 2 else now


def outcome_of(trial: TrialSnapshot, failed: bool) -> Outcome:
    """Return how a trial ended."""
    if failed:
        return "failed"
    return "stopped" if trial.stopped else "finished"


def run_key(experiment_name: str, trial_id: str) -> str:
    """Return 32 hexadecimal digits that identify this run, the same after every restart."""
    return hashlib.sha256(f"{experiment_name}/{trial_id}".encode()).hexdigest()[:32]
