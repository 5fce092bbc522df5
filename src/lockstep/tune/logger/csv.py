"""``CSVLoggerCallback`` under the name of its Tune module."""

from __future__ import annotations

from lockstep.trackers.csv import CSVLoggerCallback

__all__ = ["CSVLoggerCallback"]
