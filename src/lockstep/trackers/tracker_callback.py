"""What the library's own callbacks may ask of the dispatcher. Users subclass ``LoggerCallback``."""

from __future__ import annotations

from typing import ClassVar

from lockstep.callback import LoggerCallback

__all__ = ["TrackerCallback"]


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

    def flush_batch(self) -> None:
        """Called after each batch of events if ``batched``."""

    def check_before_run(self) -> None:
        """Called by ``fit()`` itself, before anything starts; raise to refuse the run."""
