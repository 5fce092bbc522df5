"""How one trial's run tells the experiment's callbacks, and the loop, what happens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockstep.callback import RunContext, TrialSnapshot
from lockstep.train.driver.callbacks import CallbackDispatcher

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint
    from lockstep.tune.experiment.trial import Trial

__all__ = ["TrialListener"]


class TrialListener:
    """A ``RunListener`` that passes everything on, except the end of a run that only pauses."""

    def __init__(self, trial: Trial, callbacks: CallbackDispatcher) -> None:
        self._trial = trial
        self._callbacks = callbacks
        self.ended: tuple[int, TrialSnapshot, bool] | None = None
        """What there is to tell when the run turns out to be over for good."""

    def start(self, trial: TrialSnapshot, run_context: RunContext, restored: bool = False) -> None:
        """Its function is about to run."""
        self._callbacks.start(trial, run_context, restored)

    def report(
        self,
        iteration: int,
        trial: TrialSnapshot,
        result: dict[str, Any],
        metrics_by_rank: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """A report is recorded and answered."""
        self._callbacks.report(iteration, trial, result, metrics_by_rank, checkpoint)

    def checkpoint(self, iteration: int, trial: TrialSnapshot, checkpoint: Checkpoint) -> None:
        """A checkpoint is committed."""
        self._trial.checkpoint = checkpoint
        self._callbacks.checkpoint(iteration, trial, checkpoint)

    def failure(self, run_context: RunContext, errors: dict[int, Exception]) -> None:
        """An attempt failed."""
        self._callbacks.failure(run_context, errors)

    def end(self, iteration: int, trial: TrialSnapshot, failed: bool) -> None:
        """The run has ended; whether the trial has is not known here."""
        self.ended = (iteration, trial, failed)

    def failed(self) -> None:
        """What the run took for an interruption is a failure."""
        if self.ended is not None:
            iteration, trial, _ = self.ended
            self.ended = (iteration, replace(trial, status="ERROR", stopped=False), True)

    def tell_end(self) -> None:
        """The trial is over."""
        if self.ended is not None:
            self._callbacks.end(*self.ended)
