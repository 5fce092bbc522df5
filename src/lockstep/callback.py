"""The classes that users subclass to follow a run, and the frozen values that hooks receive.

``train/driver/callbacks.py`` calls the hooks, each callback from a thread of its own in the driver
process, in this order:

    setup → on_trial_start → (on_trial_restore) → (on_trial_recover)
          → on_step_begin, on_trial_result, on_step_end | on_trial_save, on_checkpoint …
          → on_trial_complete | on_trial_error → on_experiment_end
    after_report … after_exception                       (UserCallback)

A hook that raises or stalls is reported and neither fails nor slows the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lockstep.hooks import call_hook
from lockstep.run_layout import error_file, run_title

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint
    from lockstep.config import RunConfig, ScalingConfig, StopCondition

__all__ = [
    "Callback",
    "LoggerCallback",
    "RunContext",
    "TrialSnapshot",
    "TrialStatus",
    "UserCallback",
]

TrialStatus = Literal["PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"]


@dataclass(frozen=True, eq=False, repr=False)
class TrialSnapshot:
    """A run as a callback sees it: a snapshot that later reports do not change.

    Snapshots of one trial are equal and hash alike, so a trial can key a callback's own dict.

    Attributes:
        last_result: the result *before* the one being reported.
        path: the run directory.
        checkpoint: the newest committed checkpoint.
        restored: this driver resumes a run that an earlier driver began.
        stopped: the run was interrupted or preempted, and can be restored.
    """

    PENDING: ClassVar[TrialStatus] = "PENDING"
    RUNNING: ClassVar[TrialStatus] = "RUNNING"
    PAUSED: ClassVar[TrialStatus] = "PAUSED"
    TERMINATED: ClassVar[TrialStatus] = "TERMINATED"
    ERROR: ClassVar[TrialStatus] = "ERROR"

    trial_id: str
    trainable_name: str
    path: str
    experiment_name: str = ""
    experiment_tag: str = "0"
    config: dict[str, Any] = field(default_factory=dict)
    last_result: dict[str, Any] = field(default_factory=dict)
    status: TrialStatus = "PENDING"
    checkpoint: Checkpoint | None = None
    restored: bool = False
    stopped: bool = False

    @property
    def local_path(self) -> str:
        """The run directory."""
        return self.path

    @property
    def logdir(self) -> str:
        """The run directory."""
        return self.path

    @property
    def local_dir(self) -> str:
        """The experiment's directory."""
        return self.path.rpartition("/")[0]

    def is_finished(self) -> bool:
        """Whether the run is over."""
        return self.status in ("TERMINATED", "ERROR")

    @property
    def error_file(self) -> str | None:
        """The file with the tracebacks of the trial's failures; None if there is none."""
        return error_file(self.path)

    @property
    def title(self) -> str:
        """The user's name for the experiment, where there is one, and the trial's."""
        return run_title(self.experiment_name, str(self))

    def __eq__(self, other: object) -> bool:
        return (
            self.trial_id == other.trial_id if isinstance(other, TrialSnapshot) else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(self.trial_id)

    def __str__(self) -> str:
        return f"{self.trainable_name}_{self.trial_id}"

    def __repr__(self) -> str:
        return f"Trial({self}, {self.status})"


@dataclass(frozen=True)
class RunContext:
    """The run that a ``UserCallback`` follows."""

    run_config: RunConfig
    trial_id: str
    path: str
    experiment_name: str
    train_loop_config: dict[str, Any] | None
    scaling_config: ScalingConfig


class Callback:
    """Follows runs and trials. Override the hooks you need; by default a hook does nothing.

    The object stays in the driver process, so its attributes can be read after ``fit()``. The
    hooks are called one after the other, never two at once for one run.
    """

    def setup(
        self,
        stop: StopCondition | None = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """Before anything else."""

    def on_trial_start(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """When a trial starts."""

    def on_trial_restore(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """After ``on_trial_start``, when the trial resumes from ``trial.checkpoint``."""

    def on_trial_recover(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """When a trial's workers have failed and are started again."""

    def on_step_begin(self, iteration: int, trials: Sequence[TrialSnapshot], **info: Any) -> None:
        """Before ``on_trial_result``. ``iteration`` counts the reports of all trials, from 1."""

    def on_step_end(self, iteration: int, trials: Sequence[TrialSnapshot], **info: Any) -> None:
        """After ``on_trial_result``, with the values of ``on_step_begin``."""

    def on_trial_result(
        self,
        iteration: int,
        trials: Sequence[TrialSnapshot],
        trial: TrialSnapshot,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        """After each report; ``trial.last_result`` is still the one before ``result``."""

    def on_trial_save(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """After a checkpoint is committed, before ``on_checkpoint``: ``trial.checkpoint``."""

    def on_checkpoint(
        self,
        iteration: int,
        trials: Sequence[TrialSnapshot],
        trial: TrialSnapshot,
        checkpoint: Checkpoint,
        **info: Any,
    ) -> None:
        """After a checkpoint is committed."""

    def on_trial_complete(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """When a trial has finished without an error."""

    def on_trial_error(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """When a trial has failed and will not be retried."""

    def on_experiment_end(self, trials: Sequence[TrialSnapshot], **info: Any) -> None:
        """After everything else."""

    def get_state(self) -> dict[str, Any] | None:
        """The state to save for a restore, after each checkpoint and at the end of the run.

        The state is pickled; None saves nothing. An experiment saves one state for all trials.
        """
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state that ``get_state`` returned: in a restored run, after ``setup``."""


class LoggerCallback(Callback):
    """A callback with simpler hooks, for trackers. ``super().__init__()`` need not be called."""

    def log_trial_start(self, trial: TrialSnapshot) -> None:
        """When a trial starts."""

    def log_trial_restore(self, trial: TrialSnapshot) -> None:
        """After ``log_trial_start``, when the trial resumes from ``trial.checkpoint``."""

    def log_trial_result(
        self, iteration: int, trial: TrialSnapshot, result: dict[str, Any]
    ) -> None:
        """After each report; ``trial.last_result`` is still the one before ``result``."""

    def log_trial_save(self, trial: TrialSnapshot) -> None:
        """After a checkpoint is committed: ``trial.checkpoint``."""

    def log_trial_end(self, trial: TrialSnapshot, failed: bool = False) -> None:
        """When a trial has ended."""

    def on_trial_start(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """Calls ``log_trial_start``."""
        self.log_trial_start(trial)

    def on_trial_restore(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """Calls ``log_trial_restore``."""
        self.log_trial_restore(trial)

    def on_trial_result(
        self,
        iteration: int,
        trials: Sequence[TrialSnapshot],
        trial: TrialSnapshot,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        """Calls ``log_trial_result``."""
        call_hook(self.log_trial_result, iteration=iteration, trial=trial, result=result)

    def on_checkpoint(
        self,
        iteration: int,
        trials: Sequence[TrialSnapshot],
        trial: TrialSnapshot,
        checkpoint: Checkpoint,
        **info: Any,
    ) -> None:
        """Calls ``log_trial_save``."""
        self.log_trial_save(trial)

    def on_trial_complete(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """Calls ``log_trial_end``."""
        call_hook(self.log_trial_end, trial=trial, failed=False)

    def on_trial_error(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """Calls ``log_trial_end`` with ``failed=True``."""
        call_hook(self.log_trial_end, trial=trial, failed=True)


class UserCallback:
    """Receives the reports of every rank. May be mixed with ``Callback`` objects in one list."""

    def after_report(
        self,
        run_context: RunContext,
        metrics: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """After each report: ``metrics[rank]`` is what that rank reported."""

    def after_exception(
        self, run_context: RunContext, worker_exceptions: dict[int, Exception]
    ) -> None:
        """After workers failed, also when the run restarts: rank → the exception of that rank."""
