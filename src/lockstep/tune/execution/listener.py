"""How one trial's run notifies the experiment's callbacks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.callback import TrialSnapshot
from lockstep.train.driver.callbacks import CallbackDispatcher

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint
    from lockstep.tune.experiment.trial import Trial

__all__ = ["TrialListener"]


class TrialListener:
    """A ``RunListener`` that passes everything on, but holds back the end of the run.

    A run also ends when its trial pauses, and then callbacks must not be notified.
    """

    def __init__(self, trial: Trial, callbacks: CallbackDispatcher) -> None:
        self._trial = trial
        self._callbacks = callbacks
        self._end: tuple[int, TrialSnapshot, bool] | None = None
        # Bound directly: another call for each report would cost.
        self.start = callbacks.start
        self.report = callbacks.report
        self.log = callbacks.log
        self.failure = callbacks.failure
        self.recover = callbacks.recover

    def checkpoint(self, iteration: int, trial: TrialSnapshot, checkpoint: Checkpoint) -> None:
        """A checkpoint is committed."""
        self._trial.checkpoint = checkpoint
        self._callbacks.checkpoint(iteration, trial, checkpoint)

    def end(self, iteration: int, trial: TrialSnapshot, failed: bool) -> None:
        """The run has ended; ``notify_end`` follows if the trial is over."""
        self._end = (iteration, trial, failed)

    def mark_failed(self) -> None:
        """Make a failure of an end that the run took for an interruption."""
        if self._end is not None:
            iteration, trial, _ = self._end
            self._end = (iteration, replace(trial, status="ERROR", stopped=False), True)

    def notify_end(self) -> None:
        """The trial is over: notify the callbacks."""
        if self._end is not None:
            self._callbacks.end(*self._end)
