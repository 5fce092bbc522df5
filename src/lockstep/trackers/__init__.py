"""Trackers: callbacks that write a run's reports to files and tracking services."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lockstep.trackers.csv import CSVLoggerCallback
from lockstep.trackers.json import JsonLoggerCallback

if TYPE_CHECKING:
    from lockstep.trackers.comet import CometLoggerCallback
    from lockstep.trackers.mlflow import MLflowLoggerCallback
    from lockstep.trackers.tensorboard import TBXLoggerCallback
    from lockstep.trackers.wandb import WandbLoggerCallback

__all__ = [
    "CSVLoggerCallback",
    "CometLoggerCallback",
    "JsonLoggerCallback",
    "MLflowLoggerCallback",
    "TBXLoggerCallback",
    "WandbLoggerCallback",
]

# Imported on first use: every run imports this package, but few use these trackers.
_MODULES = {
    "CometLoggerCallback": "comet",
    "MLflowLoggerCallback": "mlflow",
    "TBXLoggerCallback": "tensorboard",
    "WandbLoggerCallback": "wandb",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"lockstep.trackers.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'lockstep.trackers' has no attribute {name!r}")
