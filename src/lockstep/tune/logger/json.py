"""``JsonLoggerCallback`` under the name of its Tune module."""

from __future__ import annotations

from lockstep.trackers.json import JsonLoggerCallback

__all__ = ["JsonLoggerCallback"]
