"""A trial whose run is under way: its controller, what it holds, and how its run is put away."""

from __future__ import annotations

from typing import Literal

from lockstep.config import StopCondition
from lockstep.error_record import pack_error
from lockstep.errors import LockstepError
from lockstep.train.driver.controller import Controller
from lockstep.train.driver.events import Phase
from lockstep.train.driver.failure import WorkerFailure, describe, error_records
from lockstep.train.record.run import Run
from lockstep.train.trainer import TrainerPayload
from lockstep.tune.execution.listener import TrialListener
from lockstep.tune.execution.resources import Allocation
from lockstep.tune.experiment.trial import Trial

__all__ = ["Outcome", "RunningTrial"]

Outcome = Literal["TERMINATED", "ERROR", "PAUSED", "UNFINISHED"]


class RunningTrial:
    """One trial's run, from its start to its end.

    Attributes:
        stopped: it was told to stop for good: by a condition, the scheduler or the budget.
        pausing: it was told to stop for now.
        error: what it failed of, where its run does not call that a failure.
    """

    def __init__(self, trial: Trial, run: Run, share: Allocation, listener: TrialListener) -> None:
        self.trial = trial
        self.run = run
        self.share = share
        self.listener = listener
        self.controller: Controller | None = None
        self.payload: TrainerPayload | None = None
        """Holds the tables that its workers have mapped."""
        self.stop_condition: StopCondition | None = None
        self.stopped = False
        self.pausing = False
        self.error: str | None = None

    @property
    def phase(self) -> Phase:
        """Where its run is."""
        assert self.controller is not None
        return self.controller.state.phase

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do in it."""
        return self.controller is not None and self.controller.ended

    def outcome(self, *, leave_unfinished: bool) -> Outcome:
        """What becomes of the trial, now that its run has ended.

        A run that was interrupted is unfinished where the experiment is to go on later, and over
        where it was stopped on purpose.
        """
        if self.phase is Phase.FAILED or self.error is not None:
            return "ERROR"
        if self.stopped:
            return "TERMINATED"
        if self.pausing and self.phase in (Phase.FINISHED, Phase.INTERRUPTED):
            return "PAUSED"
        if self.phase is Phase.FINISHED:
            return "TERMINATED"
        return "UNFINISHED" if leave_unfinished else "TERMINATED"

    def why_failed(self) -> str:
        """In one sentence."""
        if self.error is not None:
            return self.error
        assert self.controller is not None
        state = self.controller.state
        return describe(state.failures, state.attempt, state.world_size)

    def fail(self) -> None:
        """Its function raised KeyboardInterrupt in its worker, which nobody had asked for."""
        error = LockstepError(
            "the training function raised KeyboardInterrupt, or its process got a SIGINT; Ctrl-C "
            "belongs to the driver, so raise another exception to let a trial fail."
        )
        failures = (WorkerFailure(0, pack_error(error)),)
        assert self.controller is not None
        state = self.controller.state
        self.error = describe(failures, state.attempt, state.world_size)
        try:
            self.run.record_failure(state.attempt, error_records(failures), self.error, retry=False)
        except LockstepError as worse:
            self.error = f"{self.error} ({worse})"
        self.listener.failed()

    def write_end(self, outcome: Outcome) -> str | None:
        """The last line of its journal; returns what went wrong. ``put_away`` does the rest.

        What may go on keeps a checkpoint to go on from.
        """
        phase = self.phase
        if outcome == "TERMINATED":
            phase = Phase.FINISHED
        elif outcome == "ERROR":
            phase = Phase.FAILED
        elif outcome == "PAUSED":
            phase = Phase.INTERRUPTED
        try:
            not_cleared = self.run.end(phase.value, flush=False)
        except LockstepError as error:
            return str(error)
        return None if not_cleared is None else f"Could not clear away checkpoints: {not_cleared}"

    def put_away(self) -> str | None:
        """Flush, copy to remote storage, close; returns what went wrong. In any thread."""
        try:
            self.run.flush()
            self.run.finish_copy()
        except (LockstepError, OSError) as error:
            return str(error)
        finally:
            self.run.close()
        return None

    def close(self) -> None:
        """Kill what is left of it. Idempotent."""
        if self.controller is not None:
            self.controller.close()
        self.run.close()
