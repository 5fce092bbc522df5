"""MLflow under the name of its AIR module."""

from __future__ import annotations

from lockstep.trackers.mlflow import MLflowLoggerCallback
from lockstep.train.tracking.mlflow import setup_mlflow

__all__ = ["MLflowLoggerCallback", "setup_mlflow"]
