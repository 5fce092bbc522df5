"""Trials whose runs are in progress: their controllers, what they hold, how their runs end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
from lockstep.tune.execution.resources import Allocation, ResourcePool
from lockstep.tune.experiment.trial import Trial

__all__ = ["Outcome", "RunningTrial", "RunningTrials", "newest_number"]

Outcome = Literal["TERMINATED", "ERROR", "PAUSED", "UNFINISHED"]

_LAST_PHASE = {
    "TERMINATED": Phase.FINISHED,
    "ERROR": Phase.FAILED,
    "PAUSED": Phase.INTERRUPTED,
}
"""What a run's journal records last; the phase of an unfinished trial's run stays."""


@dataclass(eq=False)
class RunningTrial:
    """One trial's run, from its start to its end."""

    trial: Trial
    run: Run
    allocation: Allocation
    listener: TrialListener
    controller: Controller | None = None
    payload: TrainerPayload | None = None
    """Kept alive here, because the workers have mapped its tables."""
    stop_condition: StopCondition | None = None
    stopped: bool = False
    """The trial ends at its next report: a condition, the scheduler or the budget."""
    by_scheduler: bool = False
    """It is the scheduler that ends the trial."""
    pausing: bool = False
    """The trial pauses at its next report."""
    resumed_from: int | None = None
    """The number of the checkpoint that the trial has resumed from; 0: it has started over, None:
    it has started for the first time. Checkpoints are counted from 1 here."""
    error: str | None = None
    """Why the trial failed, where its run does not count that as a failure."""

    @property
    def phase(self) -> Phase:
        """The phase of the run."""
        assert self.controller is not None
        return self.controller.state.phase

    @property
    def ended(self) -> bool:
        """Whether the controller has nothing left to do."""
        return self.controller is not None and self.controller.ended

    def outcome(self, *, leave_unfinished: bool) -> Outcome:
        """The trial's outcome, after its run has ended.

        The trial of an interrupted run is unfinished if the experiment can be restored later, and
        terminated if it was stopped on purpose.
        """
        if self.phase is Phase.FAILED or self.error is not None:
            return "ERROR"
        # Before the pause: a trial may be stopped after the decision to pause it.
        if self.stopped:
            return "TERMINATED"
        if self.pausing and self.phase in (Phase.FINISHED, Phase.INTERRUPTED):
            return "PAUSED"
        if self.phase is Phase.FINISHED:
            return "TERMINATED"
        return "UNFINISHED" if leave_unfinished else "TERMINATED"

    @property
    def has_advanced(self) -> bool:
        """Whether the trial has a checkpoint that it had not when it was resumed."""
        return self.resumed_from is None or newest_number(self.run) != self.resumed_from

    def why_failed(self) -> str:
        """Why the trial failed, in one sentence."""
        if self.error is not None:
            return self.error
        assert self.controller is not None
        state = self.controller.state
        return describe(state.failures, state.attempt, state.world_size)

    def fail_by_interrupt(self) -> None:
        """Record a failure: the worker was interrupted, and not by the driver."""
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
        self.listener.mark_failed()

    def record_end(self, outcome: Outcome) -> str | None:
        """Write the last line of the run's journal; returns what went wrong.

        ``flush_and_close`` must follow. A run that may resume keeps a checkpoint to resume from.
        """
        phase = _LAST_PHASE.get(outcome, self.phase)
        try:
            not_cleared = self.run.end(phase.value, flush=False)
        except LockstepError as error:
            return str(error)
        return None if not_cleared is None else f"Could not delete old checkpoints: {not_cleared}"

    def flush_and_close(self) -> str | None:
        """Flush the run, copy it to remote storage and close it; returns what went wrong.

        In any thread.
        """
        try:
            self.run.flush()
            self.run.finish_copy()
        except (LockstepError, OSError) as error:
            return str(error)
        finally:
            self.run.close()
        return None

    def close(self) -> None:
        """Kill the workers and close the run. Idempotent."""
        if self.controller is not None:
            self.controller.close()
        self.run.close()


def newest_number(run: Run) -> int:
    """The number of a run's newest checkpoint, from 1; 0: there is none."""
    newest = run.newest_checkpoint()
    return 0 if newest is None else newest.id + 1


class RunningTrials:
    """Every running trial, and the pool from which each holds an allocation.

    Args:
        pool: the resources that the trials share.
        limit: how many trials may run at the same time; None: as many as fit.
    """

    def __init__(self, pool: ResourcePool, limit: int | None) -> None:
        self.pool = pool
        self._limit = limit
        self._trials: dict[str, RunningTrial] = {}

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[RunningTrial]:
        return iter(self._trials.values())

    def get(self, trial_id: str) -> RunningTrial | None:
        """The running trial with this id."""
        return self._trials.get(trial_id)

    @property
    def at_limit(self) -> bool:
        """Whether no other trial may start, whatever it requests."""
        return self._limit is not None and len(self._trials) >= self._limit

    def controllers(self) -> list[Controller]:
        """The controllers of all trials."""
        return [each.controller for each in self if each.controller is not None]

    def add(self, running: RunningTrial) -> None:
        """A trial starts, with its allocation."""
        self._trials[running.trial.trial_id] = running

    def remove(self, running: RunningTrial) -> None:
        """A trial's run has ended: free the allocation."""
        del self._trials[running.trial.trial_id]
        assert running.controller is not None
        running.controller.close()
        self.pool.give_back(running.allocation)

    def close(self) -> None:
        """Kill the workers that are left."""
        for running in self:
            running.close()
        self._trials.clear()
