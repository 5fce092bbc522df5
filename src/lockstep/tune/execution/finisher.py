"""Putting runs away in threads, so that copying and flushing hold no other trial up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from lockstep.engine.loop import EventLoop
from lockstep.errors import LockstepError
from lockstep.train.driver.callbacks import CallbackDispatcher
from lockstep.tune.execution.running_trial import RunningTrial
from lockstep.tune.execution.starter import TrialStarter
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.reporting.notices import Notices

__all__ = ["RunFinisher"]

_THREADS = 4


class RunFinisher:
    """Ends runs whose workers are gone. Used from the loop's thread; its own do the work.

    Attributes:
        uploading: trial id → the run that is being copied to remote storage; what becomes of the
            trial is settled after that.
    """

    def __init__(
        self,
        loop: EventLoop,
        starter: TrialStarter,
        callbacks: CallbackDispatcher,
        notices: Notices,
    ) -> None:
        self._loop = loop
        self._starter = starter
        self._callbacks = callbacks
        self._notices = notices
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lockstep-tune")
        self._finishing = 0
        self.uploading: dict[str, RunningTrial] = {}

    @property
    def under_way(self) -> bool:
        """Whether there is something that the loop will hear of."""
        return bool(self.uploading or self._finishing)

    def upload(self, live: RunningTrial, then: Callable[[], None]) -> None:
        """Copy a run to remote storage, close it, and call ``then``."""
        self.uploading[live.trial.trial_id] = live

        def done(problem: str | None) -> None:
            del self.uploading[live.trial.trial_id]
            self._notices.problem(live.trial, problem)
            then()

        def upload() -> None:
            problem = live.put_away()
            self._loop.call_soon(lambda: done(problem))

        # The last rows have to be in the trackers' files before these are copied.
        self._callbacks.after_files(lambda: self.submit(upload))

    def finish(self, trial: Trial) -> None:
        """Let the run of a trial that is not running say that it has finished."""
        self._finishing += 1

        def done(problem: str | None) -> None:
            self._finishing -= 1
            self._notices.problem(trial, problem)

        def finish() -> None:
            problem = None
            try:
                self._starter.finish_run(trial)
            except (LockstepError, OSError) as error:
                problem = str(error)
            self._loop.call_soon(lambda: done(problem))

        self.submit(finish)

    def submit(self, call: Callable[[], object]) -> None:
        """Call it in a thread."""
        with suppress(RuntimeError):  # everything is being put away
            self._threads.submit(call)

    def shutdown(self) -> None:
        """Wait for what is under way."""
        self._threads.shutdown()
