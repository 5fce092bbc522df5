"""Trackers: callbacks that write what a run reports to files and tracking services."""

from __future__ import annotations

from lockstep.trackers.csv import CSVLoggerCallback
from lockstep.trackers.json import JsonLoggerCallback

__all__ = ["CSVLoggerCallback", "JsonLoggerCallback"]
