"""Counts work, where a clock would say how busy the machine is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["lines_run"]


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of Python a call runs in this thread, each turn of a loop counted."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()  # coverage's
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
