"""Keras in a trial: the callback under the names of its Tune module."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.train.boosting.reports import Metrics
from lockstep.train.tensorflow.keras import ReportCheckpointCallback

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCheckpointCallback(ReportCheckpointCallback):
    """Reports Keras's logs, and the model. See ``ReportCheckpointCallback``."""


class TuneReportCallback(ReportCheckpointCallback):
    """Reports Keras's logs, and no model.

    Args:
        metrics: which of Keras's logs: a name, names, or a dict from the name to report to Keras's.
        on: the event or events at which to report.
    """

    def __init__(
        self, metrics: Metrics | None = None, on: str | Sequence[str] = "epoch_end"
    ) -> None:
        super().__init__([], on, metrics)
