"""The values that cross the process boundary, in the order a run sends them.

worker                         driver
Hello            ─────────▶
                 ◀─────────    Launch        when every rank has said hello
Report           ─────────▶
                 ◀─────────    SaveOrder     only if some rank reported a checkpoint
StateDigests     ─────────▶                  only of a train.State, of several ranks
                 ◀─────────    StateShares   when every rank has sent its digests
Snapshotted      ─────────▶                  only in ASYNC mode
Sealed           ─────────▶                  only of a train.State
Saved / NotSaved ─────────▶
                 ◀─────────    Answer        when every rank is here (and it is committed)
AskCommitted     ─────────▶
                 ◀─────────    Answer        when all uploads so far are committed
Meet             ─────────▶                  at a collective
                 ◀─────────    Shared        when every rank is there
LogRow           ─────────▶                  posted, in batches, any time
BorrowTerminal   ─────────▶                  at a breakpoint
                 ◀─────────    Terminal      when no other rank has it
ReturnTerminal   ─────────▶                  when the user continues
Holding          ─────────▶                  when the function has opened a tracker's run
                 ◀─────────    LetGo         instead of Answer, when another rank has failed
Finished / Failed / Interrupted ──▶
                 ◀─────────    Exit          when every rank has finished
Lingering        ─────────▶                  if threads of the function keep the worker from exiting
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from lockstep.checkpoint.returned import Returned
from lockstep.config import CheckpointUploadMode
from lockstep.engine.base import Holder, WorkerInfo
from lockstep.storage import Storage
from lockstep.train.context import Ranks, TrainContext

__all__ = [
    "Answer",
    "AskCommitted",
    "BorrowTerminal",
    "Broken",
    "CheckpointReport",
    "CloseTrackers",
    "ClosingTrackers",
    "Committed",
    "DataReport",
    "Exit",
    "Failed",
    "FellBack",
    "Finished",
    "Hello",
    "Interrupted",
    "Launch",
    "Lingering",
    "LogRow",
    "Meet",
    "MemoryPart",
    "NotSaved",
    "Report",
    "ReturnTerminal",
    "SaveOrder",
    "Saved",
    "Sealed",
    "Shared",
    "Snapshotted",
    "StateDigests",
    "StateShares",
    "Stop",
    "Stream",
    "Terminal",
    "TrackerOpened",
    "Validated",
    "ValidationSetup",
    "WorkerSetup",
]

WORKER_ENTRY = "lockstep.train.worker.main:main"
"""What an engine runs in each worker's process."""

VALIDATION_ENTRY = "lockstep.train.worker.validate:main"
"""What an engine runs in the process that validates a checkpoint."""

Stop = bool | Literal["pause", "memory"]
"""Whether ranks stop at a report; ``"pause"``: the run is resumed from its newest checkpoint;
``"memory"``: the driver keeps their copies of the state, so that no rank has to write its own."""

Faults = Callable[[int, int, int], None]
"""Injected by tests: called with rank, report number and attempt before each report is sent."""


@dataclass(frozen=True)
class WorkerSetup:
    """What every worker of a run gets, the same for all.

    The user's objects are pickled separately, by value where a worker could not import them.
    """

    function: bytes
    """The training function and its config; unpickling them runs user imports."""
    backend: bytes
    metadata: bytes
    context: TrainContext
    """Without the worker's place, which it learns at launch."""
    storage: Storage
    score_attribute: str | None
    single_machine: bool
    use_gpu: bool
    working_dir: str | None
    own_process: bool = True
    """The worker is a process of its own, not the driver's."""
    faults: bytes = b""
    """What a test injects, pickled; empty without."""
    datasets: Mapping[str, bytes] = field(default_factory=dict)
    """Each dataset's plan, pickled."""
    overrides: bytes = b""
    """Values of the config that are this run's own, pickled; empty without."""
    guard: bytes = b""
    """The pickled ``Guard``; empty without one."""
    validates: bool = False
    """The trainer has a ``validation_config``."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """File → source code of the function, where the worker would not find it in the file."""


class Hello(NamedTuple):
    """A worker is up, and announces what the others need to find it."""

    info: WorkerInfo
    announcement: Any


class Broken(NamedTuple):
    """A report of the attempt before in which the guard has found something."""

    step: int
    """Its ``training_iteration``."""
    report: int
    """Its number in this attempt."""
    ranks: tuple[int, ...]
    """Where it was found."""
    world_size: int
    text: str
    """What was found there, in a sentence."""
    rollbacks: int = 0
    """How often the guard has rolled the run back."""
    new_code: bool = False
    """The code has changed since (``lockstep run --reload``)."""

    def gone(self) -> str:
        """What it means that it is not there any more."""
        if self.new_code:
            return f"Step {self.step}: {self.text} It is gone with the code that was saved since."
        if len(self.ranks) == self.world_size:
            who = "on every rank" if self.world_size > 1 else "there"
            why = (
                "Data or random numbers were not the same (train.State and get_dataset_shard() "
                "keep both), or a computation is not deterministic."
            )
        else:
            ranks = " and ".join(map(str, self.ranks))
            who, why = f"on rank {ranks} only", f"Suspect the hardware of rank {ranks}."
        return f"Step {self.step}: {self.text} It was {who}, and is gone when run again. {why}"


class Launch(NamedTuple):
    """Everyone is up: wire the framework and run the function. The same for all of a machine."""

    ranks: Mapping[int, Ranks]
    """The workers of this machine, by rank."""
    master: str
    """The address of rank 0's machine."""
    announcements: Mapping[int, Any]
    """What ranks have announced, without those that announced nothing, or whom nobody needs."""
    attempt: int
    checkpoint: Any
    """The checkpoint to start from, or None."""
    reported: list[Committed]
    """Every checkpoint the run has kept so far."""
    positions: dict[str, Any] | None = None
    """Where the datasets' shards resume, as kept with the checkpoint; None: at their beginning."""
    memory: tuple[MemoryPart, ...] = ()
    """The snapshots of the state to start from, where the driver has them; else empty."""
    is_pending: bool = False
    """The checkpoint to start from is not on storage yet."""
    streams: Mapping[int, Mapping[str, Stream]] = {}
    """For the workers of this machine, by rank: the datasets that a cluster streams."""
    broken: Broken | None = None
    """What the guard has found in the attempt before."""
    fallback: tuple[Any, dict[str, Any] | None] = (None, None)
    """Where to start if the checkpoint that ``is_pending`` is not written: the checkpoint before
    it, and its positions."""


class Committed(NamedTuple):
    """A committed checkpoint."""

    id: int
    checkpoint: Any
    metrics: dict[str, Any]
    status: str = "COMMITTED"
    """The value of a ``ReportedCheckpointStatus``."""


class Stream(NamedTuple):
    """One worker's part of a dataset that is divided again for each attempt."""

    address: str
    """The cluster's that streams it; empty: the user's ``configure()`` has divided it."""
    shard: bytes
    """The iterator, pickled. Ray's loads only in a process that has joined the cluster."""
    if_empty: str = ""
    """The error of an epoch without a row for this worker; empty: there may be none."""


class MemoryPart(NamedTuple):
    """One rank's snapshot in the driver's memory."""

    rank: int
    structure: bytes
    """The JSON of the rank."""
    pid: int
    descriptor: int
    """Of the process ``pid``."""
    name: str
    """What the system calls the memory; no other memory is called so."""
    size: int
    checksum: tuple[int, ...]
    file: str | None = None
    """The one file that it is the content of; None: it is a part of a ``train.State``."""
    holder: Holder | None = None
    """On a cluster: the node whose agent is the process ``pid``, and where others read it."""


class CheckpointReport(NamedTuple):
    """The checkpoint half of a report."""

    files: Mapping[str, int]
    """Names and sizes of what this rank wants saved."""
    mode: CheckpointUploadMode
    dir_name: str | None
    score: float | None
    """The score attribute's value in a dict checkpoint."""
    location: str | None
    """In NO_UPLOAD mode: where the checkpoint is, as the run refers to it."""
    of_last_row: bool = False
    """The checkpoint belongs to the row of the last report."""
    kind: str | None = None
    """The name of its class if that is a subclass of ``Checkpoint`` that lockstep has."""
    is_state: bool = False
    """A ``train.State``: the driver decides whether it is saved."""
    validation: dict[str, Any] | None = None
    """The ``fn_kwargs`` and ``timeout_s`` of its validation; empty: the trainer's; None: none."""
    is_due: bool = False
    """Of a state: it is saved, whatever ``CheckpointConfig(every=…)`` says."""


class DataReport(NamedTuple):
    """A rank's progress with its datasets."""

    positions: dict[str, Any]
    """Dataset → the state of its shard, for those that were asked for."""
    waited: float
    """The share of the time since the last report that it waited for batches."""
    waited_s: float = 0.0
    """The same in seconds."""


class Report(NamedTuple):
    """One rank's i-th report. ``metrics`` is None for a checkpoint that is no report."""

    number: int
    metrics: dict[str, Any] | None
    checkpoint: CheckpointReport | None
    reduce: str | Mapping[str, str] | None
    time: float
    time_this_iter: float
    data: DataReport | None = None
    """None in a run without datasets."""
    busy: float = 0.0
    """Seconds between the answer to the last report (or the function's call) and this report."""
    waits: dict[str, float] | None = None
    """What of ``busy`` was no computing, by account of the ledger; None: nothing that is known."""
    found: dict[str, str] | None = None
    """What the guard has found, a sentence for each kind."""


class SaveOrder(NamedTuple):
    """Write ``names`` of your checkpoint into ``directory`` of the run's storage."""

    directory: str
    name: str
    names: tuple[str, ...]
    compare: tuple[str, ...]
    """Names that another rank has too: send their fingerprints along."""
    mode: CheckpointUploadMode
    ranks: tuple[int, ...] = ()
    """The ranks that take part."""


class StateDigests(NamedTuple):
    """What of a rank's state other ranks may have as well."""

    name: str
    digests: Mapping[str, str]
    """Entry → a word that is the same where its tensors are."""


class StateShares(NamedTuple):
    """Who else has the same: each of these ranks writes a part."""

    groups: Mapping[str, tuple[int, ...]]


class Snapshotted(NamedTuple):
    """The training function cannot change this rank's part any more; the upload continues."""

    name: str
    seconds: float = 0.0
    """How long the training function waited."""
    memory: MemoryPart | None = None
    """Of a ``train.State``: where the snapshot is, without its checksum."""


class Sealed(NamedTuple):
    """Every byte of this rank's snapshot of a state is in its memory."""

    name: str
    checksum: tuple[int, ...]


class Saved(NamedTuple):
    """This rank's part is on storage."""

    name: str
    fingerprints: Mapping[str, int]


class NotSaved(NamedTuple):
    """This rank's part of a state could not be copied or written; training can continue."""

    name: str
    error: dict[str, Any]


class Answer(NamedTuple):
    """The report is recorded (and its checkpoint committed, unless it is asynchronous)."""

    stop: Stop
    committed: list[Committed]
    """Checkpoints that were committed or validated since the last answer."""
    notice: tuple[str, int | None, float | None] | None = None
    """Save soon, the group will stop: the notice's kind, the rank that must go, the deadline."""
    reduced: dict[str, Any] | None = None
    """The metrics of the row, where the report has ``reduce``."""


class Meet(NamedTuple):
    """A rank is at a collective of ``train.collective``, and waits for the others."""

    call: str
    value: bytes
    """What rank 0 shares; of other ranks it is not used."""


class Shared(NamedTuple):
    """Every rank is at the collective: rank 0's value."""

    value: bytes


class AskCommitted(NamedTuple):
    """Answer when every checkpoint that was reported is committed, or after the timeout."""

    timeout_s: float | None
    validated: bool = False
    """Also when no validation is under way."""


class FellBack(NamedTuple):
    """The checkpoint to start from was not written: this rank starts from the one before it."""


class LogRow(NamedTuple):
    """One ``train.log()`` call as a JSON object, already encoded."""

    json: str


class BorrowTerminal(NamedTuple):
    """The function has stopped at a breakpoint, and its user wants to talk to the debugger."""


class Terminal(NamedTuple):
    """The driver's terminal is this rank's until ``ReturnTerminal``."""

    path: str | None
    """None: there is no terminal, and ``problem`` says so."""
    problem: str


class ReturnTerminal(NamedTuple):
    """The debugger does not need the terminal any more."""


class Finished(NamedTuple):
    """The function returned and every upload is done."""

    returned: Returned | None = None
    """What rank 0's function returned."""
    busy: float = 0.0
    """Seconds since the answer to the last report."""
    waits: dict[str, float] | None = None
    """As in ``Report``."""


class TrackerOpened(NamedTuple):
    """The function has a tracker's run open, which must be closed before this rank is killed."""


class CloseTrackers(NamedTuple):
    """Another rank has failed: close the trackers, send ``Finished``, and wait to be killed."""


class ClosingTrackers(NamedTuple):
    """The function is over early; closing its trackers may take a moment."""

    error: dict[str, Any] | None
    """What the function raised, if that is a failure: ``Failed`` follows when they are closed."""


class Failed(NamedTuple):
    """The function raised (or an upload failed)."""

    error: dict[str, Any]
    before_start: bool = False
    """The function was not called yet."""


class ValidationSetup(NamedTuple):
    """What the process that validates a checkpoint gets."""

    function: bytes
    """The user's function, as ``serialize.dump_function`` has it."""
    sources: Mapping[str, str]
    """As in ``WorkerSetup``."""
    checkpoint: Any
    fn_kwargs: Mapping[str, Any]


class Validated(NamedTuple):
    """The validation function has returned."""

    metrics: dict[str, Any]


class Interrupted(NamedTuple):
    """The function was ended by a KeyboardInterrupt."""


class Exit(NamedTuple):
    """Everyone has finished: clean up and go."""


class Lingering(NamedTuple):
    """The worker should exit, but waits for the threads that the function has left."""

    threads: tuple[tuple[str, str], ...]
    """Each thread's name, and where it is."""
