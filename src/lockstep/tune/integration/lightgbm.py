"""LightGBM in a trial: callbacks report the evaluations of each iteration, and the model."""

from __future__ import annotations

from lockstep.train.boosting.reports import WithoutModel
from lockstep.train.lightgbm.callback import RayTrainReportCallback

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCheckpointCallback(RayTrainReportCallback):
    """Reports each iteration, with the model as a checkpoint. See ``RayTrainReportCallback``."""


class TuneReportCallback(WithoutModel, TuneReportCheckpointCallback):
    """Reports each iteration, without the model."""
