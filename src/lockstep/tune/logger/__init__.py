"""Loggers under the name of their Tune module."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from json import dumps
from typing import Any

from lockstep.callback import LoggerCallback
from lockstep.trackers.csv import CSVLoggerCallback
from lockstep.trackers.json import JsonLoggerCallback
from lockstep.trackers.tensorboard import TBXLoggerCallback

__all__ = [
    "CSVLoggerCallback",
    "JsonLoggerCallback",
    "LoggerCallback",
    "TBXLoggerCallback",
    "pretty_print",
]


def pretty_print(result: Mapping[str, Any], exclude: Collection[str] | None = None) -> str:
    """A result as text, a line a value, without its config and values that are None."""
    left_out = {"config", "hist_stats", *(exclude or ())}
    return "\n".join(_lines({k: result[k] for k in sorted(result) if k not in left_out})) + "\n"


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif value is not None:
            yield f"{indent}{name}: {dumps(value, default=str)}"
