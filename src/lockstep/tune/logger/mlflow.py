"""MLflow under the name of its Tune module."""

from __future__ import annotations

from lockstep.trackers.mlflow import MLflowLoggerCallback

__all__ = ["MLflowLoggerCallback"]
