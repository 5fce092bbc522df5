"""Loggers under the name of their Tune module."""

from __future__ import annotations

from lockstep.callback import LoggerCallback
from lockstep.trackers.csv import CSVLoggerCallback
from lockstep.trackers.json import JsonLoggerCallback
from lockstep.trackers.tensorboard import TBXLoggerCallback
from lockstep.tune.reporting.pretty import pretty_print

__all__ = [
    "CSVLoggerCallback",
    "JsonLoggerCallback",
    "LoggerCallback",
    "TBXLoggerCallback",
    "pretty_print",
]
