"""MLflow under the name of its older Tune module."""

from __future__ import annotations

from lockstep.trackers.mlflow import MLflowLoggerCallback
from lockstep.train.tracking.mlflow import mlflow_mixin, setup_mlflow

__all__ = ["MLflowLoggerCallback", "mlflow_mixin", "setup_mlflow"]
