"""Every exception lockstep raises on purpose. Nothing else lives here.

    LockstepError (RuntimeError)
    ├── TrainingFailedError          fit() failed; carries .worker_failures and .result
    │   └── WorkerGroupError         … because workers failed (the usual case)
    │       ├── ControllerError      … because the driver's side failed: storage, engine, stop=…
    │       ├── NCCLHangError        … because ranks made no progress
    │       └── PreemptionError      … because workers were preempted too often
    ├── WorkerDiedError              a worker process ended without an error (exit code, signal)
    ├── RemoteError                  stands in for an exception whose type is not known here
    ├── SessionMisuseError           report() and the like were called outside a training function
    ├── MismatchedReportsError       ranks called report() a different number of times
    ├── CheckpointError              a checkpoint could not be written, committed or read
    ├── DataProcessError             a process of map_batches(processes=True) ended by itself
    ├── StorageError                 the run's storage failed or is unusable
    ├── HangError                    ranks did not reach a report in time
    ├── StopConditionError           the user's stop function raised
    ├── PreemptedError               a worker was preempted more often than allowed
    ├── EngineError                  worker processes could not be started
    └── InsufficientResourcesError   more was requested than this machine has
    TrainingInterrupted (KeyboardInterrupt)   Ctrl-C during fit(); carries .result
    TrainingPreempted (SystemExit)            SIGTERM during fit(); carries .result
    StopTraining (BaseException)              raised by report() in a worker that must stop

All of them survive pickling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.result import Result

__all__ = [
    "CheckpointError",
    "ControllerError",
    "DataProcessError",
    "EngineError",
    "GuardError",
    "GuardRollbackError",
    "GuardSuspicion",
    "HangError",
    "InsufficientResourcesError",
    "LockstepError",
    "MismatchedReportsError",
    "NCCLHangError",
    "PreemptedError",
    "PreemptionError",
    "RemoteError",
    "SessionMisuseError",
    "StopConditionError",
    "StopTraining",
    "StorageError",
    "TrainingFailedError",
    "TrainingInterrupted",
    "TrainingPreempted",
    "WorkerDiedError",
    "WorkerGroupError",
]


class LockstepError(RuntimeError):
    """Base of every error lockstep raises on purpose."""


class TrainingFailedError(LockstepError):
    """``fit()`` failed. ``__cause__`` is the user's own exception where there is one.

    Attributes:
        worker_failures: rank → the exception of that rank, the first failing rank first.
        result: the outcome of the run until then (``result.error`` is ``__cause__``).
    """

    def __init__(
        self,
        message: str,
        worker_failures: dict[int, BaseException] | None = None,
        result: Result | None = None,
    ) -> None:
        super().__init__(message)
        self.worker_failures = dict(worker_failures or {})
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        failures: dict[int, BaseException] | None = self.worker_failures
        if self.result is not None and failures == self.result.worker_failures:
            failures = None  # Result can pickle more exceptions: it keeps their records
        return _failed_again, (type(self), str(self), failures, self.result)


def _failed_again(
    kind: type[TrainingFailedError],
    message: str,
    failures: dict[int, BaseException] | None,
    result: Result | None,
) -> TrainingFailedError:
    if failures is None and result is not None:
        failures = result.worker_failures
    error = kind(message, failures, result)
    error.__cause__ = next(iter(error.worker_failures.values()), None)
    return error


class WorkerGroupError(TrainingFailedError):
    """Training failed because workers failed."""


class ControllerError(WorkerGroupError):
    """Training failed in the driver: its storage, its engine, or ``RunConfig(stop=…)``."""


class NCCLHangError(WorkerGroupError):
    """Training failed because ranks made no progress; ``__cause__`` is the ``HangError``."""


class PreemptionError(WorkerGroupError):
    """Workers were preempted too often; ``__cause__`` is the ``PreemptedError``."""


class WorkerDiedError(LockstepError):
    """A worker process ended without reporting an error: it was killed, or it exited.

    Attributes:
        exitcode: the exit code, or minus the signal number; None when unknown.
    """

    def __init__(self, message: str, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.exitcode = exitcode

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.exitcode)


class RemoteError(LockstepError):
    """Another process's exception as text: its type, its message, and its traceback as a note.

    It replaces an exception that could not be sent, or that was read from a run's directory where
    its type is not imported, or has values that are not plain.
    """


class SessionMisuseError(LockstepError):
    """What only a training function may call was called somewhere else."""


class MismatchedReportsError(LockstepError):
    """Ranks called ``report()`` a different number of times."""


class HangError(LockstepError):
    """Ranks made no progress within ``RunConfig(hang_timeout_s=…)``, or did not start."""


class PreemptedError(LockstepError):
    """A worker was preempted more often than ``FailureConfig(max_preemption_failures=…)``."""


class StopConditionError(LockstepError):
    """The function given as ``RunConfig(stop=…)`` raised; its error is the cause."""


class GuardError(LockstepError):
    """``RunConfig(guard=…)`` has found something wrong; the run is not started again."""


class GuardSuspicion(GuardError):
    """The same, before the step was run again to see whether it comes again."""


class GuardRollbackError(GuardError):
    """The same with ``action="rollback"``: it counts as a failure, which may be retried."""


class DataProcessError(LockstepError):
    """A process that runs a dataset's functions (``processes=True``) ended by itself."""


class CheckpointError(LockstepError):
    """A checkpoint could not be written, committed or read."""


class StorageError(LockstepError):
    """The storage of a run failed or cannot be used."""


class EngineError(LockstepError):
    """Worker processes could not be started."""


class InsufficientResourcesError(LockstepError):
    """More resources were requested than there are."""


class TrainingInterrupted(KeyboardInterrupt):
    """``fit()`` was interrupted with Ctrl-C; committed checkpoints and rows stay.

    A KeyboardInterrupt, so code that handles Ctrl-C itself keeps working.
    """

    def __init__(self, message: str = "", result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result)

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message alone, because the user asked for the interrupt."""
        return [str(self)]


class TrainingPreempted(SystemExit):
    """The driver got a SIGTERM during ``fit()``; the run was saved and stopped, for a restore.

    A SystemExit with code 143, the exit code of a process that ended on SIGTERM.
    """

    def __init__(self, message: str = "", result: Result | None = None) -> None:
        super().__init__(143)
        self.message = message
        self.result = result

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.result)


class StopTraining(BaseException):
    """Raised by ``report()`` in every rank when the run must stop at that report.

    Not an ``Exception``, so a training function's ``except Exception`` does not swallow it.
    """
