"""Statuses and a clock for the tests of the displays."""

from __future__ import annotations

from typing import Any

from lockstep.console.status import RunStatus


def status(state: str = "running", **changes: Any) -> RunStatus:
    values: dict[str, Any] = {
        "attempt": 1,
        "elapsed_s": 0.0,
        "reports": 0,
        "metrics": {},
        "checkpoint": None,
        "num_workers": 2,
        "name": "my_run",
        "path": "/results/exp/my_run",
    }
    return RunStatus(state=state, **{**values, **changes})


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
