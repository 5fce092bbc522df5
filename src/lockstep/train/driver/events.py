"""The vocabulary of the state machine: what can happen to a run, and what can be done about it."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal, NamedTuple

from lockstep.config import CheckpointUploadMode
from lockstep.engine.base import WorkerInfo
from lockstep.train.driver.failure import WorkerFailure
from lockstep.train.driver.save_plan import SavePlan
from lockstep.train.protocol import Report

__all__ = [
    "Action",
    "Answer",
    "CapacityChanged",
    "CloseTrackers",
    "Closed",
    "ClosingTrackers",
    "Commit",
    "Committed",
    "Discard",
    "End",
    "Event",
    "ExplainHang",
    "Gone",
    "Interrupt",
    "InterruptWorkers",
    "KillWorkers",
    "LaunchWorkers",
    "Notice",
    "OrderSave",
    "Phase",
    "Preempt",
    "Raised",
    "Ready",
    "Record",
    "RecordAttemptStopped",
    "RecordFailure",
    "Recorded",
    "ReleaseWorkers",
    "Reported",
    "Returned",
    "Save",
    "SaveFailed",
    "SavedPart",
    "SetTimer",
    "SnapshotPart",
    "StartWorkers",
    "Stuck",
    "TimerFired",
    "TrackerOpened",
]


class Phase(Enum):
    """Where a run is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"

    @property
    def ended(self) -> bool:
        """Nothing happens any more."""
        return self not in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)


class Notice(NamedTuple):
    """Why a running group is to save and stop soon."""

    kind: Literal["preemption", "resize"]
    rank: int | None = None
    """Of a preemption: the rank that was told to go; None: the driver."""
    deadline: float | None = None
    """When it ends regardless, in seconds since the epoch."""


class Save(NamedTuple):
    """A checkpoint on its way to storage."""

    name: str
    id: int
    mode: CheckpointUploadMode
    reports: tuple[Report | None, ...]
    """By rank; None for ranks that have no part in it."""
    report_number: int
    """How many rows the run has with this one (it is the row's own number)."""
    snapshots_due: frozenset[int]
    parts_due: frozenset[int]
    fingerprints: tuple[dict[str, int], ...] = ()
    committing: bool = False
    is_row: bool = True
    """False for ``save_checkpoint()``, which is no report."""


# ---------------------------------------------------------------------------------------- events


class Ready(NamedTuple):
    """A worker is up."""

    rank: int
    info: WorkerInfo
    announcement: Any


class Reported(NamedTuple):
    """A rank called ``report()`` (or, with metrics None, ``save_checkpoint()``)."""

    rank: int
    report: Report


class SnapshotPart(NamedTuple):
    """A rank's part of an asynchronous checkpoint is safe."""

    rank: int
    name: str


class SavedPart(NamedTuple):
    """A rank's part of a checkpoint is on storage."""

    rank: int
    name: str
    fingerprints: dict[str, int]


class Recorded(NamedTuple):
    """The row is in the journal; ``stop``: the run's stop condition holds now."""

    stop: bool


class Committed(NamedTuple):
    """A checkpoint exists."""

    name: str


class SaveFailed(NamedTuple):
    """A checkpoint could not be committed."""

    name: str
    error: dict[str, Any]


class Returned(NamedTuple):
    """A rank's function returned."""

    rank: int


class TrackerOpened(NamedTuple):
    """A rank's function has something open that is to be ended before the rank: a tracker's run."""

    rank: int


class ClosingTrackers(NamedTuple):
    """A rank's function is over early, and what it has open is being ended: a tracker's run."""

    rank: int
    error: dict[str, Any] | None = None
    """What it raised; ``Raised`` says it again when all is ended."""


class Raised(NamedTuple):
    """A rank's function raised."""

    rank: int
    error: dict[str, Any]


class Gone(NamedTuple):
    """A worker's process ended."""

    rank: int
    exitcode: int | None
    detail: str


class Interrupt(NamedTuple):
    """Ctrl-C. ``gives_up``: where only commits are waited for, it ends that."""

    gives_up: bool = False


class Preempt(NamedTuple):
    """Somebody was told to go soon: a rank, or (None) the driver."""

    rank: int | None
    deadline: float


class CapacityChanged(NamedTuple):
    """So many workers fit now."""

    capacity: int


class Stuck(NamedTuple):
    """Nothing has moved at the open report for so long; ``fatal``: too long."""

    seconds: float
    fatal: bool
    told: bool = False
    """It has been explained already."""


class TimerFired(NamedTuple):
    """A timer set by ``SetTimer`` in the same attempt ran out."""

    kind: str
    attempt: int


class Closed(NamedTuple):
    """The engine could not start the workers at all."""

    error: dict[str, Any]


Event = (
    Ready
    | Reported
    | SnapshotPart
    | SavedPart
    | Recorded
    | Committed
    | SaveFailed
    | Returned
    | TrackerOpened
    | ClosingTrackers
    | Raised
    | Gone
    | Interrupt
    | Preempt
    | CapacityChanged
    | Stuck
    | TimerFired
    | Closed
)

# --------------------------------------------------------------------------------------- actions


class StartWorkers(NamedTuple):
    """Start a group for this attempt."""

    attempt: int
    size: int


class LaunchWorkers(NamedTuple):
    """Everyone is up: let them go."""

    workers: tuple[WorkerInfo, ...]
    announcements: tuple[Any, ...]


class OrderSave(NamedTuple):
    """Tell ranks to write their files."""

    save: Save
    plan: SavePlan


class Record(NamedTuple):
    """Journal one row; answered with ``Recorded``."""

    reports: tuple[Report, ...]
    checkpoint: str | None


class Commit(NamedTuple):
    """Publish a saved checkpoint; answered with ``Committed`` or ``SaveFailed``."""

    save: Save


class Discard(NamedTuple):
    """Throw away what was saved of these checkpoints: they will never be committed."""

    names: tuple[str, ...]


class Answer(NamedTuple):
    """Let these ranks go on, or stop; a notice is told to all of them at the same report."""

    ranks: tuple[int, ...]
    stop: bool
    notice: Notice | None = None


class CloseTrackers(NamedTuple):
    """These ranks wait at a report that will not be answered: let them end what they have open."""

    ranks: tuple[int, ...]


class ReleaseWorkers(NamedTuple):
    """Everyone has finished: tell them to exit."""


class InterruptWorkers(NamedTuple):
    """Ctrl-C in every worker."""


class KillWorkers(NamedTuple):
    """End them now."""


class SetTimer(NamedTuple):
    """``TimerFired(kind)`` after some seconds; the controller knows how many for each kind."""

    kind: str


class ExplainHang(NamedTuple):
    """Say which ranks are missing at a report, and where they are."""

    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    number: int
    seconds: float


class RecordFailure(NamedTuple):
    """Journal a failed attempt."""

    failures: tuple[WorkerFailure, ...]
    retry: bool


class RecordAttemptStopped(NamedTuple):
    """Journal that an attempt stopped on a notice; ``size``: of the next one."""

    notice: Notice
    size: int | None


class End(NamedTuple):
    """The run is over."""

    phase: Phase
    failures: tuple[WorkerFailure, ...]


Action = (
    StartWorkers
    | LaunchWorkers
    | OrderSave
    | Record
    | Commit
    | Discard
    | Answer
    | CloseTrackers
    | ReleaseWorkers
    | InterruptWorkers
    | KillWorkers
    | SetTimer
    | ExplainHang
    | RecordFailure
    | RecordAttemptStopped
    | End
)
