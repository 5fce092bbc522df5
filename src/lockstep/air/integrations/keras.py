"""The Keras callbacks, under their old spelling."""

from __future__ import annotations

from lockstep.train.tensorflow.keras import Callback, ReportCheckpointCallback

__all__ = ["Callback", "ReportCheckpointCallback"]
