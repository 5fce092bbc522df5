"""A trainer inside a trial: the trainer's reports become the trial's reports.

The trial gives the trainer ``RunConfig(callbacks=[TuneReportCallback()])``, and calls ``fit()``.
Passing the trainer itself to ``Tuner`` is simpler, and counts its workers as the trial's.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from lockstep.callback import RunContext, UserCallback
from lockstep.errors import StopTraining
from lockstep.train.api import report

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint

__all__ = ["TuneReportCallback"]

CHECKPOINT_PATH_KEY = "checkpoint_path"
"""The metric with the path of the inner run's checkpoint."""


class TuneReportCallback(UserCallback):
    """Passes rank 0's reports on to the trial that the trainer runs in.

    A checkpoint stays with the inner run; its path is the metric ``checkpoint_path``. When the
    trial is stopped, the inner run is interrupted and keeps its newest checkpoint.
    """

    def after_report(
        self,
        run_context: RunContext,
        metrics: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """Report rank 0's metrics."""
        row = dict(metrics[0])
        if checkpoint is not None:
            row[CHECKPOINT_PATH_KEY] = checkpoint.path
        try:
            report(row)
        except StopTraining:
            # This is a callback's thread; the main thread drives the trainer.
            os.kill(os.getpid(), signal.SIGINT)
