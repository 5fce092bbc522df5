"""The vocabulary of the state machine: what can happen to a run, and what the controller can do."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, Literal, NamedTuple

from lockstep.config import CheckpointUploadMode
from lockstep.engine.base import WorkerInfo
from lockstep.train.driver.failure import WorkerFailure
from lockstep.train.driver.save_plan import SavePlan, has_part
from lockstep.train.protocol import Report, Stop

__all__ = [
    "Action",
    "Adopt",
    "Answer",
    "Arrived",
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
    "Lost",
    "Met",
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
    "Reload",
    "Reported",
    "Returned",
    "Save",
    "SaveDropped",
    "SaveDue",
    "SaveFailed",
    "SavedPart",
    "SealedPart",
    "SetTimer",
    "ShareValue",
    "SnapshotPart",
    "StartWorkers",
    "Stuck",
    "TimerFired",
    "TrackerOpened",
]


class Phase(Enum):
    """Where a run is between its start and its end."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    """No workers: the next attempt starts after a while."""
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self not in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.WAITING)


class Notice(NamedTuple):
    """Why a running group should save and stop soon."""

    kind: Literal["preemption", "resize", "reload"]
    rank: int | None = None
    """Of a preemption: the rank whose process must go; None: the driver's."""
    deadline: float | None = None
    """When that process ends regardless, in seconds since the epoch."""


class Save(NamedTuple):
    """A checkpoint on its way to storage."""

    name: str
    id: int
    """Grows with each save. Names do not: a user may choose them."""
    mode: CheckpointUploadMode
    reports: tuple[Report | None, ...]
    """By rank; None for ranks that have no part in it."""
    report_number: int
    """The number of the checkpoint's row; without a row of its own, of the row before it."""
    snapshots_due: AbstractSet[int]
    """Ranks whose files the training function could still change (``ASYNC`` only)."""
    parts_due: AbstractSet[int]
    """Ranks whose files are not on storage yet."""
    fingerprints: Sequence[dict[str, int]] = ()
    committing: bool = False
    """``Commit`` was ordered: another thread may be publishing it."""
    is_row: bool = True
    """False for ``save_checkpoint()``, which is no report."""
    is_state: bool = False
    """Of ``train.State``: a copy in memory, which may outlive the ranks."""
    held: bool = False
    """Not ordered yet: the memory of the save before it is still in use."""
    answers: bool = False
    """The ranks wait at their report: it is answered when the last snapshot is taken."""
    sealed: AbstractSet[int] = frozenset()
    """Ranks whose copy in memory is complete."""
    dropped: WorkerFailure | None = None
    """A rank could not write its part, and why: discarded when the others are done."""
    adopted: bool = False
    """The ranks are gone; the driver writes it from their memory."""

    @property
    def in_memory(self) -> bool:
        """Whether every byte of it is in memory, on every rank that has a part."""
        parts = {rank for rank, report in enumerate(self.reports) if has_part(report)}
        return self.is_state and not self.snapshots_due and parts <= self.sealed


class Lost(NamedTuple):
    """A state that could not be written, while no newer one has been."""

    save: Save
    failure: WorkerFailure
    tried: bool = False
    """The driver has tried to write it since the ranks are gone."""


# ---------------------------------------------------------------------------------------- events


class Ready(NamedTuple):
    """A worker's process has started and connected."""

    rank: int
    info: WorkerInfo
    announcement: Any


class Reported(NamedTuple):
    """A rank called ``report()`` (or, with metrics None, ``save_checkpoint()``)."""

    rank: int
    report: Report


class SnapshotPart(NamedTuple):
    """The training function can no longer change a rank's part of an asynchronous checkpoint."""

    rank: int
    name: str


class SealedPart(NamedTuple):
    """A rank's copy of a state in memory is complete."""

    rank: int
    name: str


class SaveDropped(NamedTuple):
    """A rank could not copy or write its part of a state. Its report is answered all the same."""

    rank: int
    name: str
    error: dict[str, Any]


class SaveDue(NamedTuple):
    """It is time to save the state that ranks report next."""


class SavedPart(NamedTuple):
    """A rank's part of a checkpoint is on storage."""

    rank: int
    name: str
    fingerprints: dict[str, int]


class Recorded(NamedTuple):
    """A row is in the journal; ``stop``: the run ends, or pauses, at this row."""

    stop: Stop


class Committed(NamedTuple):
    """A checkpoint exists."""

    name: str


class SaveFailed(NamedTuple):
    """A checkpoint could not be committed."""

    name: str
    error: dict[str, Any]
    torn: bool = False
    """Of a state: its copy in memory is not what the ranks have taken."""
    timed_out: bool = False
    """Storage does not answer: what it still does may arrive later (``Arrived``)."""


class Arrived(NamedTuple):
    """A checkpoint exists whose commit was abandoned, and it is the run's newest."""

    save: Save


class Met(NamedTuple):
    """A rank is at a collective of ``train.collective``."""

    rank: int
    call: str
    value: bytes


class Returned(NamedTuple):
    """A rank's function returned."""

    rank: int


class TrackerOpened(NamedTuple):
    """A rank's function has opened a tracker's run, which must be closed before the rank ends."""

    rank: int


class ClosingTrackers(NamedTuple):
    """A rank's function is over early, and its tracker's run is being closed."""

    rank: int
    error: dict[str, Any] | None = None
    """What the function raised; ``Raised`` follows with the same when the tracker is closed."""


class Raised(NamedTuple):
    """A rank's function raised, or (``before_start``) what prepares it."""

    rank: int
    error: dict[str, Any]
    before_start: bool = False


class Gone(NamedTuple):
    """A worker's process ended."""

    rank: int
    exitcode: int | None
    detail: str


class Interrupt(NamedTuple):
    """Ctrl-C. ``gives_up``: where only commits are under way, abandon them."""

    gives_up: bool = False


class Preempt(NamedTuple):
    """A rank's process, or (None) the driver's, must go soon."""

    rank: int | None
    deadline: float
    """When that process is killed, in seconds since the epoch."""


class Reload(NamedTuple):
    """The code has changed: the driver stops the run, and another one resumes it."""


class CapacityChanged(NamedTuple):
    """How many workers fit has changed."""

    capacity: int


class Stuck(NamedTuple):
    """Nothing has happened for ``seconds``; ``fatal``: the attempt fails because of that."""

    seconds: float
    fatal: bool
    warned: bool = False
    """The user has been warned already."""
    longest: float | None = None
    """The longest such time before it in this attempt, where there was one."""
    detail: str = ""
    """What the engine knows about the ranks that do not answer."""


class TimerFired(NamedTuple):
    """A timer set by ``SetTimer`` in the same attempt ran out."""

    kind: str
    attempt: int
    """The attempt that set the timer: a later attempt ignores it."""


class Closed(NamedTuple):
    """The engine could not start the workers at all."""

    error: dict[str, Any]


Event = (
    Ready
    | Reported
    | SnapshotPart
    | SealedPart
    | SaveDropped
    | SaveDue
    | SavedPart
    | Recorded
    | Committed
    | SaveFailed
    | Arrived
    | Met
    | Returned
    | TrackerOpened
    | ClosingTrackers
    | Raised
    | Gone
    | Interrupt
    | Preempt
    | Reload
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
    """Every worker is up: run the function."""

    workers: tuple[WorkerInfo, ...]
    announcements: tuple[Any, ...]


class OrderSave(NamedTuple):
    """Order ranks to write their files."""

    save: Save
    plan: SavePlan


class Record(NamedTuple):
    """Journal one row; answered with ``Recorded``."""

    reports: tuple[Report, ...]
    checkpoint: str | None


class Commit(NamedTuple):
    """Publish a saved checkpoint; answered with ``Committed`` or ``SaveFailed``."""

    save: Save


class Adopt(NamedTuple):
    """Write a state whose ranks are gone, from their memory, and commit it; answered as Commit."""

    save: Save


class Discard(NamedTuple):
    """Delete what was saved of these checkpoints: they will never be committed."""

    names: tuple[str, ...]
    in_memory: bool = False
    """Of a state: only the files. The copy in memory stays, to be written later."""


class Answer(NamedTuple):
    """Let these ranks continue, or stop. A notice goes to all of them at the same report."""

    ranks: tuple[int, ...]
    stop: Stop
    notice: Notice | None = None


class ShareValue(NamedTuple):
    """Every rank is at a collective: send rank 0's value to all of them."""

    value: bytes


class CloseTrackers(NamedTuple):
    """These ranks wait at a report that will not be answered: let them close their trackers."""

    ranks: tuple[int, ...]


class ReleaseWorkers(NamedTuple):
    """Every rank has finished: let the workers exit."""


class InterruptWorkers(NamedTuple):
    """Interrupt every worker, as Ctrl-C does."""


class KillWorkers(NamedTuple):
    """End every worker now."""


class SetTimer(NamedTuple):
    """``TimerFired(kind)`` after some seconds; None: the controller knows how many for the kind."""

    kind: str
    seconds: float | None = None


class ExplainHang(NamedTuple):
    """Warn which ranks do not continue, and show their stacks."""

    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    """The ranks that wait at a report for the missing ones."""
    returned: tuple[int, ...]
    """The ranks whose function has returned."""
    number: int | None
    """The report they wait at; None if no rank waits."""
    seconds: float
    longest: float | None = None
    starting: bool = False
    """The missing ranks are not up yet: they have no stacks."""
    detail: str = ""


class RecordFailure(NamedTuple):
    """Journal a failed attempt."""

    failures: tuple[WorkerFailure, ...]
    retry: bool
    repeats: int = 1
    """How many attempts in a row have failed like this one, at the same place."""
    delay_s: float = 0.0
    """How long until the next attempt starts."""


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
    | Adopt
    | Discard
    | Answer
    | ShareValue
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
