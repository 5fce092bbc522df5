"""A trial whose run is under way: its controller, what it holds, and how its run is put away."""

from __future__ import annotations

from typing import Literal

from lockstep.errors import LockstepError
from lockstep.train.controller import Controller
from lockstep.train.events import Phase
from lockstep.train.run import Run
from lockstep.train.trainer import Package
from lockstep.tune.listener import TrialListener
from lockstep.tune.machine import Share
from lockstep.tune.trial import Trial

__all__ = ["LiveTrial", "Outcome"]

Outcome = Literal["TERMINATED", "ERROR", "PAUSED", "UNFINISHED"]


class LiveTrial:
    """One trial's run, from its start to its end.

    Attributes:
        stopped: it was told to stop for good: by a condition, the scheduler or the budget.
        pausing: it was told to stop for now.
    """

    def __init__(self, trial: Trial, run: Run, share: Share, listener: TrialListener) -> None:
        self.trial = trial
        self.run = run
        self.share = share
        self.listener = listener
        self.controller: Controller | None = None
        self.package: Package | None = None
        """Holds what its workers have mapped."""
        self.stopped = False
        self.pausing = False

    @property
    def phase(self) -> Phase:
        """Where its run is."""
        assert self.controller is not None
        return self.controller.state.phase

    def outcome(self, *, leave_unfinished: bool) -> Outcome:
        """What becomes of the trial, now that its run has ended.

        A run that was interrupted is unfinished where the experiment is to go on later, and over
        where it was stopped on purpose.
        """
        if self.phase is Phase.FAILED:
            return "ERROR"
        if self.stopped:
            return "TERMINATED"
        if self.phase is Phase.FINISHED:
            return "PAUSED" if self.pausing else "TERMINATED"
        return "UNFINISHED" if leave_unfinished else "TERMINATED"

    def write_end(self, outcome: Outcome) -> str | None:
        """The last line of its journal; returns what went wrong. ``put_away`` does the rest.

        What may go on keeps a checkpoint to go on from.
        """
        phase = self.phase
        if outcome == "TERMINATED":
            phase = Phase.FINISHED
        elif outcome == "PAUSED":
            phase = Phase.INTERRUPTED
        try:
            not_cleared = self.run.end(phase, flush=False)
        except LockstepError as error:
            return str(error)
        return None if not_cleared is None else f"Could not clear away checkpoints: {not_cleared}"

    def put_away(self) -> str | None:
        """Flush, copy to remote storage, close; returns what went wrong. In any thread."""
        try:
            self.run.flush()
            self.run.hand_over()
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
