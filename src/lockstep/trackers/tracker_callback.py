"""What the library's own callbacks may ask of the dispatcher. Users subclass ``LoggerCallback``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from lockstep.callback import LoggerCallback, TrialSnapshot
from lockstep.errors import LockstepError

__all__ = ["TrackerCallback", "TrackerProblem"]


class TrackerProblem(LockstepError):
    """A sentence for the user about a tracker; training is not affected. Shown as it is."""


class TrackerCallback(LoggerCallback):
    """A tracker of this library. The values here are also what any other callback gets."""

    batched: ClassVar[bool] = False
    """Collect events for a moment, deliver them together, then call ``flush_batch``."""

    max_waiting: ClassVar[int | None] = 10_000
    """How many events may wait for a slow callback. Further reports are left out, with one
    warning. None: any number."""

    end_timeout_s: float | None = None
    """How long the end of a run may wait for this callback; None: LOCKSTEP_CALLBACK_FLUSH_S."""

    uses_directory: bool = True
    """Whether the callback reads or writes in a trial's directory. The copy of that directory to
    remote storage then waits for the callback, for a limited time."""

    takes_logs: ClassVar[bool] = False
    """Whether ``log_trial_rows`` gets the rows of ``train.log()``."""

    def log_trial_rows(self, trial_id: str, rank: int, rows: list[dict[str, Any]]) -> None:
        """Called with rows of ``train.log()``: ``step`` (None if not given), ``time``, ``metrics``.

        A run that logs faster than trackers can follow leaves rows out.
        """

    def abandon(
        self,
        reports: Sequence[tuple[int, TrialSnapshot, dict[str, Any]]],
        ends: Sequence[tuple[TrialSnapshot, bool]],
    ) -> str | None:
        """Called in another thread when the run no longer waits for this callback.

        Args:
            reports: the arguments of ``log_trial_result``, where it was not called yet.
            ends: the arguments of ``log_trial_end``, where it was not called yet.

        Returns:
            a sentence for the user, about what the callback still had to do.
        """
        return None

    def flush_batch(self) -> None:
        """Called after each batch of events if ``batched``."""

    def check_before_run(self) -> None:
        """Called by ``fit()`` itself, before anything starts; raise to refuse the run."""
