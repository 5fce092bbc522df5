"""Finishing runs in threads, so that copying and flushing delay no other trial."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from lockstep.engine.loop import EventLoop
from lockstep.errors import LockstepError
from lockstep.train.driver.callbacks import CallbackDispatcher
from lockstep.tune.execution.running_trial import RunningTrial
from lockstep.tune.execution.starter import TrialStarter
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.reporting.notices import Notices

__all__ = ["RunFinisher"]

_THREADS = 4
"""How many runs are finished at once: enough for storage that is slow to answer."""


@dataclass
class RunFinisher:
    """Finishes runs whose workers have ended. Called from the loop's thread, works in its own."""

    _loop: EventLoop
    _starter: TrialStarter
    _callbacks: CallbackDispatcher
    _notices: Notices
    uploading: dict[str, RunningTrial] = field(default_factory=dict)
    """Trial id → the trial whose run is being copied to remote storage. Its outcome is applied
    after that."""
    _finishing: int = 0

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lockstep-tune")

    @property
    def busy(self) -> bool:
        """Whether a job is in progress whose end the loop waits for."""
        return bool(self.uploading or self._finishing)

    def upload(self, ended: RunningTrial, then: Callable[[], None]) -> None:
        """Copy a run to remote storage, close it, and call ``then`` in the loop's thread."""
        self.uploading[ended.trial.trial_id] = ended

        def done(problem: str | None) -> None:
            del self.uploading[ended.trial.trial_id]
            self._notices.problem(ended.trial, problem)
            then()

        def upload() -> None:
            problem = ended.flush_and_close()
            # Back to the loop's thread, which alone changes trials.
            self._loop.call_soon(lambda: done(problem))

        # The last rows have to be in the trackers' files before these are copied.
        self._callbacks.after_files(lambda: self.submit(upload))

    def finish(self, trial: Trial) -> None:
        """Record the end of the run of a trial that is over and not running."""
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

    def submit(self, job: Callable[[], object]) -> None:
        """Call a function in a thread."""
        with suppress(RuntimeError):  # after shutdown()
            self._threads.submit(job)

    def shutdown(self) -> None:
        """Wait for the jobs in progress."""
        self._threads.shutdown()
