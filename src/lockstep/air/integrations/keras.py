"""The Keras callback, under its old spelling."""

from __future__ import annotations

from lockstep.train.tensorflow.keras import ReportCheckpointCallback

__all__ = ["ReportCheckpointCallback"]
