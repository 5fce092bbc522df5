"""A trial: what the driver knows of one config and its run. Small, for thousands of trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, overload

from lockstep.callback import TrialSnapshot, TrialStatus
from lockstep.errors import LockstepError
from lockstep.journal import parse_line
from lockstep.journal.records import RunRecords
from lockstep.metrics import look_up
from lockstep.run_layout import error_file
from lockstep.storage import Storage

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint

__all__ = ["Trial", "TrialSnapshots"]

_SHOWN_KEYS = ("training_iteration", "time_total_s")


@dataclass(slots=True, eq=False, repr=False)
class Trial:
    """One config and its progress. Only the loop changes it; schedulers read it."""

    PENDING: ClassVar[TrialStatus] = "PENDING"
    RUNNING: ClassVar[TrialStatus] = "RUNNING"
    PAUSED: ClassVar[TrialStatus] = "PAUSED"
    TERMINATED: ClassVar[TrialStatus] = "TERMINATED"
    ERROR: ClassVar[TrialStatus] = "ERROR"

    trial_id: str
    """Unique in the experiment and the same after a restore: ``4913f_00007``."""
    index: int
    """The trial's number, from 0."""
    config: dict[str, Any]
    """The searcher's suggestion, or the scheduler's replacement of it."""
    _: KW_ONLY
    trainable_name: str
    experiment_tag: str
    evaluated_params: dict[str, Any]
    directory: str
    """The name of the run's directory inside the experiment's."""
    path: str
    status: TrialStatus = field(default="PENDING", init=False)
    last_result: dict[str, Any] = field(default_factory=dict, init=False)
    """The newest row; of a trial that is over, only the values that tables show."""
    checkpoint: Checkpoint | None = field(default=None, init=False)
    """The newest committed checkpoint."""
    error: str | None = field(default=None, init=False)
    """Why the trial failed, in one line."""
    begun: bool = field(default=False, init=False)
    """Whether the run's directory exists."""
    reports: int = field(default=0, init=False)

    @property
    def over(self) -> bool:
        """Whether the trial will not run again."""
        return self.status in ("TERMINATED", "ERROR")

    @property
    def logdir(self) -> str:
        """The run's directory."""
        return self.path

    local_path = logdir

    @property
    def local_dir(self) -> str:
        """The experiment's directory."""
        return self.path.rpartition("/")[0]

    def is_finished(self) -> bool:
        """The same as ``over``, under the name of Ray's ``Trial``."""
        return self.over

    @property
    def error_file(self) -> str | None:
        """The file with the tracebacks of the trial's failures; None if there is none."""
        return error_file(self.path)

    def trim(self, metric: str | None) -> None:
        """Drop the parts of the last row that no table shows, after the trial's end."""
        row, kept = self.last_result, {}
        for name in (metric, *_SHOWN_KEYS):
            if name is not None and (value := look_up(row, name)) is not None:
                kept[name] = value
        self.last_result = kept

    def snapshot(self) -> TrialSnapshot:
        """The trial as callbacks see it."""
        return TrialSnapshot(
            trial_id=self.trial_id,
            trainable_name=self.trainable_name,
            path=self.path,
            experiment_tag=self.experiment_tag,
            config=self.config,
            last_result=self.last_result,
            status=self.status,
            checkpoint=self.checkpoint,
        )

    def __str__(self) -> str:
        return f"{self.trainable_name}_{self.trial_id}"

    def __repr__(self) -> str:
        return f"Trial({self}, {self.status})"


class _FinishedTrial(TrialSnapshot):
    """A trial that is over; its last row is read from its directory on access."""

    @cached_property
    def last_result(self) -> dict[str, Any]:
        """The newest row."""
        storage: Storage = vars(self)["storage"]
        try:
            records = RunRecords(storage)
        except (FileNotFoundError, LockstepError):  # the trial never started, or was deleted
            return {}
        return {} if records.last_report is None else records.row(parse_line(records.last_report))


class TrialSnapshots(Sequence[TrialSnapshot]):
    """All trials as callbacks see them. A trial is copied on access, not before.

    Args:
        trials: the trials.
        experiment: the directory that contains their runs.
    """

    def __init__(self, trials: Sequence[Trial], experiment: Storage) -> None:
        self._trials = trials
        self._experiment = experiment

    def __len__(self) -> int:
        return len(self._trials)

    @overload
    def __getitem__(self, index: int) -> TrialSnapshot: ...

    @overload
    def __getitem__(self, index: slice) -> list[TrialSnapshot]: ...

    def __getitem__(self, index: int | slice) -> TrialSnapshot | list[TrialSnapshot]:
        if isinstance(index, slice):
            return [self._snapshot(trial) for trial in self._trials[index]]
        return self._snapshot(self._trials[index])

    def __iter__(self) -> Iterator[TrialSnapshot]:
        return map(self._snapshot, self._trials)

    def _snapshot(self, trial: Trial) -> TrialSnapshot:
        snapshot = trial.snapshot()
        if not trial.over:
            return snapshot
        values = dict(vars(snapshot))
        del values["last_result"]
        # Without the constructor: the dataclass would want a last_result, which is read on access.
        finished = object.__new__(_FinishedTrial)
        vars(finished).update(values, storage=self._experiment.child(trial.directory))
        return finished
