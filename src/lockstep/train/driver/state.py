"""The run as a pure state machine: ``transition(state, event) -> (state, actions)``.

No I/O, no clock, no randomness. The controller performs the actions and feeds back what happens.

    STARTING ──all ready──▶ RUNNING ──all finished──▶ STOPPING ──all exited──▶ FINISHED
        │                      │                       ▲   │
        └──failure, Ctrl-C─────┴───────────────────────┘   ├─ retry, resize ─▶ STARTING (attempt+1)
                                                           ├─ failed again ──▶ WAITING ─▶ STARTING
                                                           ├─ failed ────────▶ FAILED
                                                           ├─ Ctrl-C ────────▶ INTERRUPTED
                                                           └─ SIGTERM ───────▶ PREEMPTED

A report is a barrier. While RUNNING, the i-th report of each rank waits in ``waiting``; when it is
complete it becomes a row (``Record``), and, if some rank brought a checkpoint, first a ``Save``:

    waiting complete ─▶ OrderSave ─▶ every rank Saved ─▶ Record ─▶ Commit ─▶ Answer     (SYNC)
    waiting complete ─▶ OrderSave ─▶ every rank Snapshotted ─▶ Record ─▶ Answer         (ASYNC)
                                     every rank Saved ─▶ Commit                          later

A ``train.State`` is saved as in ASYNC mode, when it is due: by ``every``, or because ranks stop at
this report. There is one copy of it in memory, so a save waits (``held``) until the save before it
is committed. A copy that is complete outlives its ranks: when they are gone, the driver writes it
(``Adopt``), and the next attempt starts from it at once. A state that could not be written
(``lost``) stays in memory until the next save: when the ranks are gone, the driver tries again, and
a run whose last state is lost fails.

A notice (a preemption, new code, or room for more workers) goes to every rank with the answer to
one report, so that ranks can save. At the next report they stop; for a resize, once a checkpoint is
committed; for new code at once where this report has a checkpoint.

Checkpoints are committed in the order of their reports. What was not committed when an attempt ends
is discarded (``Discard``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from lockstep.config import CheckpointUploadMode
from lockstep.engine.base import WorkerInfo
from lockstep.error_record import pack_error, summarise_error
from lockstep.errors import (
    CheckpointError,
    HangError,
    InsufficientResourcesError,
    LockstepError,
    MismatchedReportsError,
    PreemptedError,
    StorageError,
)
from lockstep.run_layout import checkpoint_name, entry_of
from lockstep.train.driver.by_rank import added, nothing_for, put, set_of
from lockstep.train.driver.events import (
    Action,
    Adopt,
    Answer,
    Arrived,
    CapacityChanged,
    Closed,
    CloseTrackers,
    ClosingTrackers,
    Commit,
    Committed,
    Discard,
    End,
    Event,
    ExplainHang,
    Gone,
    Interrupt,
    InterruptWorkers,
    KillWorkers,
    LaunchWorkers,
    Lost,
    Met,
    Notice,
    OrderSave,
    Phase,
    Preempt,
    Raised,
    Ready,
    Record,
    RecordAttemptStopped,
    Recorded,
    RecordFailure,
    ReleaseWorkers,
    Reload,
    Reported,
    Returned,
    Save,
    SavedPart,
    SaveDropped,
    SaveDue,
    SaveFailed,
    SealedPart,
    SetTimer,
    ShareValue,
    SnapshotPart,
    StartWorkers,
    Stuck,
    TimerFired,
    TrackerOpened,
)
from lockstep.train.driver.failure import (
    FailurePolicy,
    WorkerFailure,
    died,
    fails_again,
    first_cause,
    found_by_guard,
    is_final,
    lost_connection,
    name_ranks,
    needs_verdict,
    signature,
)
from lockstep.train.driver.save_plan import agreed_name, plan_save
from lockstep.train.driver.scaling import ScalingPolicy
from lockstep.train.protocol import Report, Stop

__all__ = ["IllegalTransition", "RunState", "transition"]


class RunState(NamedTuple):
    """Everything that the next decision depends on.

    A NamedTuple and not a dataclass: thousands of states are created a second.
    """

    # Of all attempts.
    world_size: int
    policy: FailurePolicy = FailurePolicy()
    scaling: ScalingPolicy = ScalingPolicy(1, 1)
    capacity: int = 0
    """How many workers fit now."""
    phase: Phase = Phase.STARTING
    attempt: int = 1
    failed_attempts: int = 0
    preempted_attempts: int = 0
    fruitless: int = 0
    """How many attempts in a row failed without getting further than the one before."""
    repeats: int = 0
    """How many attempts in a row failed at the same place, with the same error."""
    last_failure: tuple[Any, ...] = ()
    """How the last attempt failed, and after how many rows."""
    began: bool = False
    """An earlier attempt of this driver has called the function."""
    rows: int = 0
    next_checkpoint_id: int = 0
    # This attempt's workers, by rank.
    workers: Sequence[WorkerInfo | None] = ()
    announcements: Sequence[Any] = ()
    started: int = 0
    """How many of the workers are up."""
    # The open report.
    waiting: Sequence[Report | None] = ()
    """The reports of the ranks that wait for the others, by rank."""
    arrived: int = 0
    """How many ranks wait. Kept beside ``waiting``: counting it at each report would take long."""
    meeting: Sequence[Met | None] = ()
    """The ranks that wait at a collective of ``train.collective``, by rank; empty if none does."""
    met: int = 0
    """How many ranks wait there."""
    recording: bool = False
    """The row is being recorded: ``Recorded`` is due."""
    stop: Stop = False
    """The stop condition holds: ranks stop when they are answered."""
    # Checkpoints.
    saves: tuple[Save, ...] = ()
    """Checkpoints on their way to storage, oldest first."""
    committed: frozenset[str] = frozenset()
    """The names in use, of users' own directories as well."""
    committed_before: frozenset[str] = frozenset()
    """The names in use when the attempt began. Also those in ``reserved``."""
    reserved: frozenset[str] = frozenset()
    """Names that users gave to checkpoints which a lost attempt may still write. The next attempts
    use other names."""
    writes_in_place: bool = False
    """Files are written to their final place: a lost worker may write to each name it has begun."""
    rows_before: int = 0
    """How many rows there were when the attempt began."""
    safe_rows: int = 0
    """How many rows the newest committed checkpoint covers."""
    every: int = 1
    """Every how many reports with a state it is saved; 0: when ``save_due``."""
    offers: int = 0
    """How many reports of this attempt had a state."""
    save_due: bool = False
    """The next state that is reported is saved."""
    unsaved: bool = False
    """The open report has a state that is not saved."""
    lost: Lost | None = None
    """The newest state that was to be saved could not be."""
    # A notice, and the end of the attempt.
    notice: Notice | None = None
    noticed_at: int | None = None
    """At which row the ranks got the notice; None: not yet."""
    stops_on_notice: bool = False
    """The ranks stop because of the notice."""
    returned: AbstractSet[int] = frozenset()
    trackers_open: AbstractSet[int] = frozenset()
    """Ranks that have a tracker's run open."""
    closing: AbstractSet[int] = frozenset()
    """Ranks that are closing their tracker's run, and must not be killed before they have."""
    gone: AbstractSet[int] = frozenset()
    """Ranks whose process has exited."""
    failures: Sequence[WorkerFailure] = ()
    """In order of arrival."""
    failed: AbstractSet[int] = frozenset()
    """The ranks of ``failures``."""
    cause_known: bool = False
    """One of ``failures`` is more than a broken connection."""
    only_found: bool = False
    """Only guards have ended the attempt so far: it matters on which ranks."""
    interrupted: bool = False
    killed: bool = False
    """``KillWorkers`` was ordered."""
    history: tuple[str, ...] = ()
    """The last events, for ``IllegalTransition``."""

    @staticmethod
    def new(
        world_size: int, policy: FailurePolicy, *, scaling: ScalingPolicy | None = None, **past: Any
    ) -> tuple[RunState, list[Action]]:
        """The state of a run that starts, and what to do first.

        ``past``: the fields of a resumed run: attempt, rows, next_checkpoint_id, committed, …
        """
        scaling = scaling or ScalingPolicy(world_size, world_size)
        rows = past.get("rows", 0)
        state = _fresh_attempt(RunState(world_size, policy, scaling, rows_before=rows, **past))
        return state, [StartWorkers(state.attempt, world_size)]


_PLACES = {name: place for place, name in enumerate(RunState._fields)}


def _changed(state: RunState, **fields: Any) -> RunState:
    """``state._replace``, for what every report does: that calls a function for every field."""
    values = list(state)
    for name, value in fields.items():
        values[_PLACES[name]] = value
    return tuple.__new__(RunState, values)


class IllegalTransition(LockstepError):
    """An event that cannot happen in this state: a bug in lockstep. Carries the history."""


def transition(state: RunState, event: Event) -> tuple[RunState, list[Action]]:
    """The next state, and what to do."""
    handler: Callable[[RunState, Any], tuple[RunState, list[Action]]] = _HANDLERS[type(event)]
    return handler(state, event)


def _fresh_attempt(state: RunState) -> RunState:
    size = state.world_size
    return state._replace(
        phase=Phase.STARTING,
        workers=nothing_for(size),
        announcements=nothing_for(size),
        waiting=nothing_for(size),
        started=0,
        arrived=0,
        meeting=(),
        met=0,
        recording=False,
        saves=tuple(save for save in state.saves if save.adopted),
        offers=0,
        unsaved=False,
        lost=state.lost and state.lost._replace(tried=False),
        committed_before=state.committed | _names_in_memory(state) | state.reserved,
        rows_before=state.rows,
        # A row proves that the function was called. Both counts are the old state's here.
        began=state.began or state.rows > state.rows_before,
        returned=set_of((), size),
        trackers_open=set_of((), size),
        closing=set_of((), size),
        gone=set_of((), size),
        failures=(),
        failed=set_of((), size),
        cause_known=False,
        only_found=False,
        killed=False,
        # New code is still to come after a failure. What else was announced has happened.
        notice=state.notice if state.notice and state.notice.kind == "reload" else None,
        noticed_at=None,
        stops_on_notice=False,
    )


def _names_in_memory(state: RunState) -> set[str]:
    """The state that the next attempt starts from, where that may not be on storage yet."""
    lost = () if state.lost is None else (state.lost.save.name,)
    return {*lost, *(save.name for save in state.saves if save.adopted)}


def _illegal(state: RunState, event: Event) -> IllegalTransition:
    return IllegalTransition(
        f"{event!r} cannot happen while {state.phase.value} (attempt {state.attempt}); "
        f"before it: {', '.join(state.history) or 'nothing'}."
    )


def _note(state: RunState, what: str) -> tuple[str, ...]:
    # Not called for reports: twenty of them would push out everything that led to the error.
    return (*state.history[-19:], what)


def _ready(state: RunState, event: Ready) -> tuple[RunState, list[Action]]:
    # Another rank has failed, or Ctrl-C came, while this worker started: it will be killed.
    if state.phase is Phase.STOPPING:
        return state, []
    if state.phase is not Phase.STARTING or state.workers[event.rank] is not None:
        raise _illegal(state, event)
    workers = put(state.workers, event.rank, event.info)
    state = state._replace(
        workers=workers,
        started=state.started + 1,
        announcements=put(state.announcements, event.rank, event.announcement),
        history=_note(state, f"rank {event.rank} ready"),
    )
    # No worker is launched before all are up: each one needs the addresses of the others.
    if state.started < state.world_size:
        return state, []
    known = tuple(worker for worker in workers if worker is not None)
    state = _consider_growing(state._replace(phase=Phase.RUNNING))
    return state, [LaunchWorkers(known, tuple(state.announcements))]


def _reported(state: RunState, event: Reported) -> tuple[RunState, list[Action]]:
    if state.phase is Phase.STOPPING:
        # Never answered: the rank is about to be stopped.
        state, close_trackers = _close_trackers(state, {event.rank})
        if not state.only_found:
            return state, close_trackers
        waiting = put(state.waiting, event.rank, event.report)
        state = state._replace(waiting=waiting, arrived=state.arrived + 1)
        state, actions = _check_stopped(state)
        return state, [*close_trackers, *actions]
    if state.phase is not Phase.RUNNING:
        raise _illegal(state, event)
    rank, report = event
    part = report.checkpoint
    # save_checkpoint() concerns one rank: it adds no row, and no other rank waits for it.
    if report.metrics is None and not (part is not None and part.is_state):
        parts: list[Report | None] = [None] * state.world_size
        parts[rank] = report
        return _start_save(state, tuple(parts), is_row=False)
    # A rank waits for its answer before it reports again.
    if state.waiting[rank] is not None or state.recording:
        raise _illegal(state, event)
    waiting = put(state.waiting, rank, report)
    arrived = state.arrived + 1
    if arrived < state.world_size:
        # The missing rank may have returned already. Then nobody would open this barrier.
        return _check_counts(_changed(state, waiting=waiting, arrived=arrived))
    if any(part.checkpoint is not None for part in waiting):
        state = state._replace(waiting=waiting, arrived=arrived)
        return _reported_checkpoint(state)
    return _record(state, None, waiting=waiting, arrived=arrived)


def _reported_checkpoint(state: RunState) -> tuple[RunState, list[Action]]:
    """Every rank has reported, and some have a checkpoint."""
    reports = [report for report in state.waiting if report is not None]
    parts = [report.checkpoint for report in reports if report.checkpoint is not None]
    if any(report.metrics is None for report in reports):
        return _final_save(state)
    if not all(part.is_state for part in parts):
        return _start_save(state, tuple(state.waiting), is_row=True)
    state = state._replace(offers=state.offers + 1)
    due = state.save_due or state.notice is not None or any(part.is_due for part in parts)
    if due or (state.every and state.offers % state.every == 0):
        return _start_save(state._replace(save_due=False), tuple(state.waiting), is_row=True)
    return _record(state, None, unsaved=True)


def _final_save(state: RunState) -> tuple[RunState, list[Action]]:
    """Functions have returned with a state that was reported last, and not saved."""
    finals = {
        rank: report
        for rank, report in enumerate(state.waiting)
        if report is not None and report.metrics is None
    }
    if len(finals) < state.arrived:
        late = [r for r, report in enumerate(state.waiting) if report and r not in finals]
        done = state.returned | finals.keys()
        return _unequal(state, sorted(done), late)
    reports = tuple(finals.get(rank) for rank in range(state.world_size))
    state = state._replace(waiting=nothing_for(state.world_size), arrived=0)
    return _start_save(state, reports, is_row=False)


def _save_due(state: RunState, event: SaveDue) -> tuple[RunState, list[Action]]:
    return state._replace(save_due=True), []


def _met(state: RunState, event: Met) -> tuple[RunState, list[Action]]:
    if state.phase is Phase.STOPPING:
        return _close_trackers(state, {event.rank})  # never answered, like a report
    meeting = state.meeting or nothing_for(state.world_size)
    if state.phase is not Phase.RUNNING or meeting[event.rank] is not None:
        raise _illegal(state, event)
    state = state._replace(meeting=put(meeting, event.rank, event), met=state.met + 1)
    if state.met < state.world_size:
        return _check_counts(state)
    present = [met for met in state.meeting if met is not None]
    other = next((met for met in present if met.call != present[0].call), None)
    if other is not None:
        error = MismatchedReportsError(
            f"rank 0 called {present[0].call} while rank {other.rank} called {other.call}; every "
            "rank must call the same functions of train.collective, in the same order."
        )
        return _fail(state, WorkerFailure(other.rank, pack_error(error)))
    return state._replace(meeting=(), met=0), [ShareValue(present[0].value)]


def _record(state: RunState, checkpoint: str | None, **also: Any) -> tuple[RunState, list[Action]]:
    state = _changed(state, recording=True, rows=state.rows + 1, **also)
    reports = tuple(report for report in state.waiting if report is not None)
    return state, [Record(reports, checkpoint)]


def _start_save(
    state: RunState,
    reports: tuple[Report | None, ...],
    *,
    is_row: bool,
    answers: bool = False,
) -> tuple[RunState, list[Action]]:
    parts = {
        rank: report.checkpoint
        for rank, report in enumerate(reports)
        if report is not None and report.checkpoint is not None
    }
    # Ranks agree on what matters (agreed_name checks that), so one rank's report speaks for all.
    lead = parts[min(parts)]
    try:
        name = agreed_name(parts)
    except CheckpointError as error:
        return _fail(state, WorkerFailure(min(parts), pack_error(error)))
    number, size = state.next_checkpoint_id, state.world_size
    reserved = state.reserved
    if state.writes_in_place and name is not None:
        reserved |= {name}
    if name is None:
        # A user may have given such a name as checkpoint_dir_name.
        while _is_taken(state, checkpoint_name(number)):
            number += 1
        name = checkpoint_name(number)
    elif name in state.committed_before:
        # A function that starts over uses the names of the attempt before again.
        name = f"{name}_attempt_{state.attempt}"
    if _is_taken(state, name):
        twice = CheckpointError(
            f"the checkpoint directory {name!r} is taken by an earlier report of this run; "
            "give each report a checkpoint_dir_name of its own."
        )
        return _fail(state, WorkerFailure(min(parts), pack_error(twice)))
    save = Save(
        name=name,
        id=number,
        mode=lead.mode,
        reports=reports,
        report_number=state.rows + (1 if is_row else 0),
        snapshots_due=set_of(parts if lead.mode is CheckpointUploadMode.ASYNC else (), size),
        parts_due=set_of(parts if lead.mode is not CheckpointUploadMode.NO_UPLOAD else (), size),
        sealed=set_of((), size),
        is_row=is_row,
        is_state=lead.is_state,
        # The memory has room for one.
        held=lead.is_state and any(save.is_state for save in state.saves),
        answers=answers,
    )
    # A checkpoint that is not uploaded may lie in the run's own directory. Its name must never be
    # used for another one: publishing that would replace the user's files.
    users = entry_of(lead.location or "")
    state = state._replace(
        next_checkpoint_id=number + 1,
        reserved=reserved,
        saves=(*state.saves, save),
        committed=state.committed if users is None else state.committed | {users},
        history=_note(state, f"save {save.name}"),
    )
    if save.held:
        return state, []
    if save.parts_due:
        return _order(state, save)
    return _commit_next(state)


def _order(state: RunState, save: Save) -> tuple[RunState, list[Action]]:
    parts = {
        rank: report.checkpoint
        for rank, report in enumerate(save.reports)
        if report is not None and report.checkpoint is not None
    }
    try:
        order = OrderSave(save, plan_save(parts))
    except CheckpointError as error:
        return _fail(state, WorkerFailure(min(parts), pack_error(error)))
    if not save.is_state:
        return state, [order]
    # The ranks write over the copy in memory now.
    state, forget = _forget_lost(state)
    return state, [*forget, order]


def _forget_lost(state: RunState) -> tuple[RunState, list[Action]]:
    """A newer state takes the place of the one that could not be written."""
    if state.lost is None:
        return state, []
    return state._replace(lost=None), [Discard((state.lost.save.name,))]


def _order_held(state: RunState) -> tuple[RunState, list[Action]]:
    """Order the state that waited for the memory, if that is free now."""
    held = next((save for save in state.saves if save.held), None)
    busy = any(save.is_state and not save.held for save in state.saves)
    if held is None or busy or state.phase is not Phase.RUNNING:
        return state, []
    save = held._replace(held=False)
    return _order(_with_save(state, save), save)


def _snapshot_part(state: RunState, event: SnapshotPart) -> tuple[RunState, list[Action]]:
    save = _find(state, event.name)
    # The message was on its way when the attempt began to stop: no rank will be answered.
    if save is None or state.phase is not Phase.RUNNING:
        return state, []
    save = save._replace(snapshots_due=save.snapshots_due - {event.rank})
    state = _with_save(state, save)
    return (state, []) if save.snapshots_due else _after_snapshots(state, save)


def _after_snapshots(state: RunState, save: Save) -> tuple[RunState, list[Action]]:
    """No rank needs its state any more: let them continue."""
    if save.is_row:
        return _record(state, None if save.dropped else save.name)
    if save.answers:
        return _open_barrier(state._replace(unsaved=False))
    return state, [Answer(_ranks_of(save), False)]


def _sealed_part(state: RunState, event: SealedPart) -> tuple[RunState, list[Action]]:
    save = _find(state, event.name)
    if save is None:
        return state, []
    return _with_save(state, save._replace(sealed=save.sealed | {event.rank})), []


def _save_dropped(state: RunState, event: SaveDropped) -> tuple[RunState, list[Action]]:
    save = _find(state, event.name)
    if save is None:
        return state, []
    waited = event.rank in save.snapshots_due
    save = save._replace(
        dropped=save.dropped or WorkerFailure(event.rank, event.error),
        snapshots_due=save.snapshots_due - {event.rank},
        parts_due=save.parts_due - {event.rank},
    )
    state = _with_save(state, save)
    actions: list[Action] = []
    if waited and not save.snapshots_due and state.phase is Phase.RUNNING:
        state, actions = _after_snapshots(state, save)
    state, more = _commit_next(state)
    return state, [*actions, *more]


def _saved_part(state: RunState, event: SavedPart) -> tuple[RunState, list[Action]]:
    save = _find(state, event.name)
    # The save was abandoned or has failed before this part arrived.
    if save is None:
        return state, []
    save = save._replace(
        parts_due=save.parts_due - {event.rank},
        # Only ranks that have a file of the same name send some.
        fingerprints=added(save.fingerprints, event.fingerprints)
        if event.fingerprints
        else save.fingerprints,
    )
    state = _with_save(state, save)
    return _commit_next(state)


def _commit_next(state: RunState) -> tuple[RunState, list[Action]]:
    """Commit the oldest save if it is complete. A later save waits, so commits are in order."""
    if not state.saves:
        return state, []
    save = state.saves[0]
    if save.parts_due or save.committing:
        return state, []
    if save.dropped and not save.snapshots_due:
        state = state._replace(saves=state.saves[1:], lost=Lost(save, save.dropped))
        state, ordered = _order_held(state)
        state, more = _commit_next(state)
        return state, [Discard((save.name,), save.in_memory), *ordered, *more]
    # An asynchronous save has its row as soon as the last snapshot is there, and may be committed
    # even while the attempt stops. A synchronous one gets its row only here.
    asynchronous = save.mode is CheckpointUploadMode.ASYNC
    if save.snapshots_due or (not asynchronous and state.phase is not Phase.RUNNING):
        return state, []  # its report will never be answered, so there is no such row
    save = save._replace(committing=True)
    state = _with_save(state, save)
    if save.is_row and not asynchronous:
        # The row is journaled before the checkpoint is published. A driver killed in between loses
        # neither: the other order would leave a checkpoint without its metrics.
        state, actions = _record(state, save.name)
        return state, [*actions, Commit(save)]
    return state, [Commit(save)]


def _recorded(state: RunState, event: Recorded) -> tuple[RunState, list[Action]]:
    # With a synchronous checkpoint, ranks are answered when it is committed. The stop waits, too.
    if any(save.is_row and save.mode is not CheckpointUploadMode.ASYNC for save in state.saves):
        return state._replace(recording=False, stop=event.stop), []
    return _open_barrier(state, recording=False, stop=event.stop)


def _open_barrier(state: RunState, **also: Any) -> tuple[RunState, list[Action]]:
    size = state.world_size
    # Under a notice every state is saved, so only the stop of a run can find one that is not.
    if state.unsaved and also.get("stop", state.stop) and state.phase is Phase.RUNNING:
        return _save_before_stop(state._replace(unsaved=False, **also), state.waiting)
    state = _changed(state, waiting=nothing_for(size), arrived=0, unsaved=False, **also)
    # The attempt is stopping. An answer would let ranks train on, past the state that counts.
    if state.phase is not Phase.RUNNING:
        return state, []
    everyone = tuple(range(size))
    # A run that stops for good here needs no notice to save and start again.
    if state.notice is None or state.stop:
        return state, [Answer(everyone, state.stop)]
    return _answer_with_notice(state, state.notice, everyone)


def _save_before_stop(
    state: RunState, waiting: Sequence[Report | None]
) -> tuple[RunState, list[Action]]:
    """Ranks will stop at this report, and its state is not saved: save it, then answer."""
    last = tuple(
        report
        if report is None or report.checkpoint is None
        else report._replace(checkpoint=report.checkpoint._replace(of_last_row=True))
        for report in waiting
    )
    return _start_save(state, last, is_row=False, answers=True)


def _answer_with_notice(
    state: RunState, notice: Notice, everyone: tuple[int, ...]
) -> tuple[RunState, list[Action]]:
    """Send the notice at one report, so that ranks can save; stop them at a later one."""
    if notice.kind == "reload" and state.rows in {
        state.safe_rows,
        *(save.report_number for save in state.saves if not save.dropped),
    }:
        # This report has a checkpoint: nothing is lost if ranks stop here.
        return state._replace(stops_on_notice=True), [Answer(everyone, True)]
    if state.noticed_at is None:
        return state._replace(noticed_at=state.rows), [Answer(everyone, False, notice)]
    # A preempted process ends anyway, so ranks stop at the next report. A resize can wait for a
    # checkpoint that is newer than the notice: then no training is lost.
    if notice.kind != "resize" or state.safe_rows > state.noticed_at:
        return state._replace(stops_on_notice=True), [Answer(everyone, True)]
    return state, [Answer(everyone, False)]


def _committed(state: RunState, event: Committed) -> tuple[RunState, list[Action]]:
    save = _find(state, event.name)
    if save is None:
        raise _illegal(state, event)
    state = state._replace(
        saves=tuple(other for other in state.saves if other.name != save.name),
        committed=state.committed | {save.name},
        safe_rows=save.report_number,
        history=_note(state, f"committed {save.name}"),
    )
    actions: list[Action] = []
    forget: list[Action] = []
    if state.lost is not None and state.lost.save.id == save.id:
        state = state._replace(lost=None)
    else:
        state, forget = _forget_lost(state)
    if save.mode is not CheckpointUploadMode.ASYNC:
        # Ranks waited for this commit. For an asynchronous save they were answered at the row.
        if save.is_row:
            state, actions = _open_barrier(state)
        elif state.phase is Phase.RUNNING:
            actions = [Answer(_ranks_of(save), False)]
    # A later save may have been complete for long, and all ranks gone: only this one was due.
    state, next_commit = _commit_next(state)
    state, ordered = _order_held(state)
    state, more = _check_stopped(state)
    return state, [*forget, *actions, *next_commit, *ordered, *more]


def _arrived(state: RunState, event: Arrived) -> tuple[RunState, list[Action]]:
    save = event.save
    state = state._replace(
        committed=state.committed | {save.name},
        safe_rows=max(state.safe_rows, save.report_number),
        history=_note(state, f"{save.name} arrived late"),
    )
    if state.lost is None or state.lost.save.id > save.id:
        return state, []
    if state.lost.save.id == save.id:
        return state._replace(lost=None), []
    return _forget_lost(state)


def _save_failed(state: RunState, event: SaveFailed) -> tuple[RunState, list[Action]]:
    save = _find(state, event.name)
    if event.timed_out:  # the publish cannot be cancelled, and may end later
        state = state._replace(reserved=state.reserved | {event.name})
    # A state costs a checkpoint and not the run: the copy in memory is tried again at the end.
    # Storage that does not answer ends an attempt, unless the ranks of the state are gone already.
    if save is not None and (save.adopted or (save.is_state and not event.timed_out)):
        if event.torn:
            save = save._replace(sealed=set_of((), state.world_size), is_state=False)
        tried = len(state.gone) == state.world_size
        state = state._replace(
            saves=tuple(other for other in state.saves if other.name != save.name),
            lost=Lost(save, WorkerFailure(0, event.error), tried),
        )
        state, next_commit = _commit_next(state)
        state, ordered = _order_held(state)
        state, more = _check_stopped(state)
        return state, [Discard((save.name,), save.in_memory), *next_commit, *ordered, *more]
    state = state._replace(saves=tuple(save for save in state.saves if save.name != event.name))
    # Publishing is the driver's work, so no rank is to blame; an error record needs one.
    return _fail(state, WorkerFailure(0, event.error))


def _returned(state: RunState, event: Returned) -> tuple[RunState, list[Action]]:
    state = state._replace(
        returned=state.returned | {event.rank},
        trackers_open=state.trackers_open - {event.rank},
        history=_note(state, f"rank {event.rank} returned"),
    )
    if state.phase is Phase.STOPPING:
        # A rank may close its tracker's run and then return, although the attempt has failed.
        return _after_closing(state) if event.rank in state.closing else (state, [])
    if state.phase is not Phase.RUNNING:
        raise _illegal(state, event)
    if len(state.returned) == state.world_size:
        # Workers wait for the release, so that no rank tears a process group down that another rank
        # still uses. The timer ends a worker whose threads keep it from exiting.
        return state._replace(phase=Phase.STOPPING), [ReleaseWorkers(), SetTimer("exit")]
    return _check_counts(state)


def _tracker_opened(state: RunState, event: TrackerOpened) -> tuple[RunState, list[Action]]:
    return state._replace(trackers_open=state.trackers_open | {event.rank}), []


def _close_trackers(state: RunState, waiting: set[int]) -> tuple[RunState, list[Action]]:
    """Another rank has failed: let ranks that wait at a report close their trackers' runs.

    Without this, rank 0's tracker would show the run as running for ever.
    """
    # A rank in a collective reads no message; only one that waits at a report can be asked.
    ranks = (waiting & state.trackers_open) - state.closing - state.gone
    # An interrupt reaches the function itself, which then closes its tracker's run.
    if not ranks or not state.failures or state.killed or state.interrupted:
        return state, []
    return state._replace(closing=state.closing | ranks), [CloseTrackers(tuple(sorted(ranks)))]


def _after_closing(state: RunState) -> tuple[RunState, list[Action]]:
    """A rank has closed its tracker's run. The kill waited for that, and can follow now."""
    state, actions = _check_stopped(state)
    if state.phase is Phase.STOPPING and not state.killed and not _still_closing(state):
        actions = [SetTimer("collect"), *actions]
    return state, actions


def _closing_trackers(state: RunState, event: ClosingTrackers) -> tuple[RunState, list[Action]]:
    state = state._replace(closing=state.closing | {event.rank})
    if event.error is None:
        return state, []
    return _fail(state, WorkerFailure(event.rank, event.error))


def _check_counts(state: RunState) -> tuple[RunState, list[Action]]:
    """Ranks that returned will never report again: the ranks that wait would wait for ever."""
    if state.meeting:
        return _check_meeting(state)
    if not state.returned or not state.arrived:
        return state, []
    if state.arrived + len(state.returned) < state.world_size:
        return state, []
    if any(report is not None and report.metrics is None for report in state.waiting):
        return _final_save(state)
    waiting = [rank for rank, report in enumerate(state.waiting) if report is not None]
    return _unequal(state, sorted(state.returned), waiting)


def _unequal(
    state: RunState, returned: list[int], waiting: list[int]
) -> tuple[RunState, list[Action]]:
    report = state.waiting[waiting[0]]
    assert report is not None
    done = report.number - 1
    error = MismatchedReportsError(
        f"{name_ranks(returned)} returned after {done} report(s) while {name_ranks(waiting)} "
        f"reached report {report.number}; every rank must call report() equally often."
    )
    return _fail(state, WorkerFailure(min(returned), pack_error(error)))


def _check_meeting(state: RunState) -> tuple[RunState, list[Action]]:
    """Ranks wait at a collective: the others must not all be at a report, or have returned."""
    if state.met + state.arrived + len(state.returned) < state.world_size:
        return state, []
    met = [event for event in state.meeting if event is not None]
    reporting = [rank for rank, report in enumerate(state.waiting) if report is not None]
    done = [f"{name_ranks(reporting)} called report()"] if reporting else []
    done += [f"{name_ranks(sorted(state.returned))} returned"] if state.returned else []
    error = MismatchedReportsError(
        f"{name_ranks([event.rank for event in met])} called {met[0].call} while "
        f"{' and '.join(done)}; every rank must call it."
    )
    return _fail(state, WorkerFailure(met[0].rank, pack_error(error)))


def _raised(state: RunState, event: Raised) -> tuple[RunState, list[Action]]:
    was_closing = event.rank in state.closing
    if was_closing:
        state = state._replace(
            closing=state.closing - {event.rank}, trackers_open=state.trackers_open - {event.rank}
        )
    # ClosingTrackers brought this error already. Counting it twice would name the rank twice.
    known = event.rank in state.failed
    if known and was_closing:
        return _after_closing(state)
    return _fail(state, WorkerFailure(event.rank, event.error, before_start=event.before_start))


def _gone(state: RunState, event: Gone) -> tuple[RunState, list[Action]]:
    state = state._replace(
        gone=state.gone | {event.rank},
        history=_note(state, f"rank {event.rank} gone ({event.exitcode})"),
    )
    expected = event.rank in state.failed or event.rank in state.returned
    # An exit that the driver has caused is no failure of its own.
    stopped_by_us = state.killed or state.interrupted
    if expected or stopped_by_us:
        return _check_stopped(state)
    return _fail(state, died(event.rank, event.exitcode, event.detail))


def _closed(state: RunState, event: Closed) -> tuple[RunState, list[Action]]:
    """No retry: starting the workers again would fail again, at once."""
    failures = (WorkerFailure(0, event.error),)
    everyone = set_of(range(state.world_size), state.world_size)
    # Nothing was started, so nobody has to exit before the run can end.
    state = state._replace(phase=Phase.FAILED, failures=failures, gone=everyone)
    return state, [RecordFailure(failures, False), End(Phase.FAILED, failures)]


def _fail(state: RunState, failure: WorkerFailure) -> tuple[RunState, list[Action]]:
    # Connections break because a rank fails. Until that rank's own error is here, the cause is
    # not known: wait for it a little longer than for the consequences.
    consequence = lost_connection(failure)
    timer = None
    if not state.cause_known and (not consequence or not state.failures):
        timer = SetTimer("cause" if consequence else "collect")
        if found_by_guard(failure):
            # What it means depends on which ranks have it: each comes to this report, or fails.
            timer = SetTimer("grace")
    state = state._replace(
        phase=Phase.STOPPING,
        failures=added(state.failures, failure),
        failed=state.failed | {failure.rank},
        cause_known=state.cause_known or not consequence,
        only_found=found_by_guard(failure) and (state.only_found or not state.failures),
        history=_note(state, f"rank {failure.rank} failed"),
    )
    close_trackers: list[Action] = []
    if state.trackers_open:  # who waits is looked up for these only: every rank may fail at once
        state, close_trackers = _close_trackers(state, _waiting(state))
    state, actions = _check_stopped(state)
    if timer and state.phase is Phase.STOPPING and not state.killed and not state.interrupted:
        return state, [*close_trackers, timer, *actions]
    return state, [*close_trackers, *actions]


def _interrupt(state: RunState, event: Interrupt) -> tuple[RunState, list[Action]]:
    if state.phase.ended:
        return state, []
    if state.phase is Phase.WAITING:
        return state._replace(phase=Phase.INTERRUPTED), [End(Phase.INTERRUPTED, ())]
    finished = state.phase is Phase.STOPPING and len(state.returned) == state.world_size
    # Only storage is waited for. Without its saves the state waits for nothing any more.
    if event.gives_up and len(state.gone) == state.world_size:
        interrupted = state.interrupted or not finished
        lost = state.lost and state.lost._replace(tried=True)
        return _check_stopped(state._replace(saves=(), lost=lost, interrupted=interrupted))
    if finished:
        return state._replace(killed=True), [KillWorkers()]  # the run counts as finished
    # Workers that are stopping already had their chance to clean up: kill them.
    again = state.interrupted or state.phase is Phase.STOPPING
    state = state._replace(
        phase=Phase.STOPPING,
        interrupted=True,
        killed=state.killed or again,
        history=_note(state, "interrupt"),
    )
    if again:
        return state, [KillWorkers()]
    return state, [InterruptWorkers(), SetTimer("grace")]


def _preempt(state: RunState, event: Preempt) -> tuple[RunState, list[Action]]:
    if state.phase is Phase.WAITING:
        # The notice of a worker that has exited since: between attempts there is no worker to save.
        if event.rank is not None:
            return state, []
        return state._replace(phase=Phase.PREEMPTED), [End(Phase.PREEMPTED, ())]
    notice = state.notice
    if state.phase.ended or (notice is not None and notice.kind == "preemption"):
        if notice is not None and event.rank is None and notice.rank is not None:
            # The driver has to go, too, not only a worker: there will be no new attempt.
            state = state._replace(notice=notice._replace(rank=None))
        return state, []
    state = state._replace(
        notice=Notice("preemption", event.rank, event.deadline),
        noticed_at=None,  # a resize that was announced before is replaced: announce again
        history=_note(state, "preemption notice"),
    )
    return state, [SetTimer("preemption")]


def _reload(state: RunState, event: Reload) -> tuple[RunState, list[Action]]:
    if state.phase is Phase.WAITING:
        return state._replace(phase=Phase.PREEMPTED), [End(Phase.PREEMPTED, ())]
    # A resize is less urgent, and the attempt after this one chooses its size anyway.
    pending = state.notice is not None and state.notice.kind != "resize"
    if state.phase.ended or pending:
        return state, []
    notice = Notice("reload")
    return state._replace(notice=notice, noticed_at=None, history=_note(state, "reload")), []


def _capacity_changed(state: RunState, event: CapacityChanged) -> tuple[RunState, list[Action]]:
    state = state._replace(capacity=event.capacity)
    size = state.scaling.size_for(event.capacity)
    nobody = state.phase is Phase.STARTING and not state.started
    if nobody and size is not None and size < state.world_size and not state.gone:
        # These workers may wait for ever for a place that is gone. Fewer do not have to.
        notice = Notice("resize")
        state = state._replace(
            phase=Phase.STOPPING, notice=notice, stops_on_notice=True, killed=True
        )
        return state, [KillWorkers()]
    return _consider_growing(state), []


def _consider_growing(state: RunState) -> RunState:
    """Plan a resize if more workers fit, or drop the plan if they do not fit any more."""
    # Once ranks have the order to stop, the next attempt chooses its size by itself.
    if state.phase is not Phase.RUNNING or state.stops_on_notice:
        return state
    grown = state.scaling.grown(state.world_size, state.capacity) is not None
    # A pending preemption is more urgent, and the attempt after it chooses its size anyway.
    if grown and state.notice is None:
        return state._replace(notice=Notice("resize"), noticed_at=None)
    if not grown and state.notice is not None and state.notice.kind == "resize":
        return state._replace(notice=None, noticed_at=None)
    return state


def _stuck(state: RunState, event: Stuck) -> tuple[RunState, list[Action]]:
    explain = _explain_hang(state, event)
    if explain is None:
        return state, []
    if not event.fatal:
        return state, [explain]
    error = HangError(_hang_error(explain))
    state, actions = _fail(state, WorkerFailure(explain.missing[0], pack_error(error)))
    if event.warned or explain.starting:
        return state, actions
    # Ranks must live until their stacks are written, which takes a moment longer than sending
    # an error. So the kill waits for the longer of the two timers, which is set once.
    at_once = (SetTimer("collect"), KillWorkers())
    patient = [SetTimer("cause") if action in at_once else action for action in actions]
    return state._replace(killed=False), [explain, *dict.fromkeys(patient)]


def _explain_hang(state: RunState, event: Stuck) -> ExplainHang | None:
    """Which ranks are missing; None if there was progress since, or all ranks wait for storage."""
    starting = state.phase is Phase.STARTING
    if not (starting or state.phase is Phase.RUNNING) or state.arrived == state.world_size:
        return None
    waiting = tuple(rank for rank, report in enumerate(state.waiting) if report is not None)
    if starting:
        missing = tuple(rank for rank, worker in enumerate(state.workers) if worker is None)
    else:
        met = [one for one in state.meeting if one is not None]
        gone = {*waiting, *state.returned, *(one.rank for one in met)}
        if met:
            at = f"{name_ranks([one.rank for one in met])} at {met[0].call}"
            event = event._replace(detail=f"{at}; {event.detail}" if event.detail else at)
        missing = tuple(rank for rank in range(state.world_size) if rank not in gone)
    report = state.waiting[waiting[0]] if waiting else None
    return ExplainHang(
        missing,
        waiting,
        tuple(sorted(state.returned)),
        None if report is None else report.number,
        event.seconds,
        event.longest,
        starting,
        event.detail,
    )


def _hang_error(hang: ExplainHang) -> str:
    missing, seconds = name_ranks(hang.missing), f"{hang.seconds:.1f} s"
    detail = f" ({hang.detail})" if hang.detail else ""
    if hang.starting:
        has = "has" if len(hang.missing) == 1 else "have"
        return f"{missing} {has} not started within {seconds}{detail}."
    where = (
        "its stack is in its log" if len(hang.missing) == 1 else "their stacks are in their logs"
    )
    done = f"; {name_ranks(hang.returned)} had returned" if hang.returned else ""
    if hang.number is not None:
        what = f"did not come to report {hang.number} within {seconds}, where "
        what += f"{name_ranks(hang.waiting)} waited"
    else:
        what = f"did not come to a report within {seconds}"
    return f"{missing} {what}{done}{detail}; {where}."


def _timer_fired(state: RunState, event: TimerFired) -> tuple[RunState, list[Action]]:
    # Timers are not cancelled between attempts: one of an earlier attempt means nothing now.
    if event.attempt != state.attempt or state.phase.ended or state.killed:
        return state, []
    if state.phase is Phase.WAITING:
        return _restart(state) if event.kind == "retry" else (state, [])
    if event.kind == "preemption":
        # The grace period is over. Where every rank has returned, only the exit was late.
        finished = len(state.returned) == state.world_size
        state = state._replace(
            phase=Phase.STOPPING, stops_on_notice=state.stops_on_notice or not finished
        )
    elif state.phase is not Phase.STOPPING:
        return state, []
    elif event.kind in ("cause", "collect") and _still_closing(state):
        return state, [SetTimer("grace")]
    elif event.kind == "collect" and state.trackers_open & _silent(state):
        # Such a rank may notice a broken connection, or reach its report, and close its trackers.
        return state, [SetTimer("cause")]
    return state._replace(killed=True), [KillWorkers()]


def _waiting(state: RunState) -> set[int]:
    """The ranks that wait at a report or a collective, and write nothing meanwhile."""
    busy = {rank for save in state.saves for rank in _busy_with(save)}
    met = {event.rank for event in state.meeting if event is not None}
    return {rank for rank, report in enumerate(state.waiting) if report is not None} - busy | met


def _busy_with(save: Save) -> AbstractSet[int]:
    """The ranks that write their parts of a checkpoint, and read no message until they have."""
    asynchronous = save.mode is CheckpointUploadMode.ASYNC
    return save.snapshots_due if asynchronous else save.parts_due


def _silent(state: RunState) -> AbstractSet[int]:
    """The ranks that have neither returned, nor failed, nor exited."""
    return set(range(state.world_size)) - state.gone - state.returned - state.failed


def _some_are_due(state: RunState) -> bool:
    """Whether a rank may still say something that matters for the cause."""
    done = len(state.gone | state.returned | state.failed)
    if done >= state.world_size:
        return False
    # The ranks are looked through only when all may be there: each of them comes here.
    if not state.only_found or done + state.arrived < state.world_size:
        return True
    waiting = {rank for rank, report in enumerate(state.waiting) if report is not None}
    return bool(_silent(state) - waiting)


def _still_closing(state: RunState) -> AbstractSet[int]:
    """The ranks that are closing their trackers' runs."""
    return state.closing - state.gone - state.returned


def _check_stopped(state: RunState) -> tuple[RunState, list[Action]]:
    """Kill what is left once no rank has anything to say; decide what follows when all exited."""
    if state.phase is not Phase.STOPPING:
        return state, []
    if len(state.gone) < state.world_size:
        # Ranks that have failed may hang while they exit, in a collective's cleanup for example.
        if not state.failures or state.killed or _some_are_due(state) or _still_closing(state):
            return state, []
        return state._replace(killed=True), [KillWorkers()]
    if any(save.committing and not save.adopted for save in state.saves):
        return state, []  # a commit is under way in another thread: it will count
    # From here on every process is gone, so nobody writes into a staged directory any more.
    actions: list[Action] = []
    kept = [save for save in state.saves if save.adopted]
    # One at most: the memory has room for one.
    complete = [save for save in state.saves if save.in_memory and not save.adopted]
    if state.lost is not None and not state.lost.tried and state.lost.save.in_memory:
        complete.append(state.lost.save)
        state = state._replace(lost=state.lost._replace(tried=True))
    if complete and not kept:
        save = complete[0]._replace(committing=True, adopted=True)
        actions.append(Adopt(save))
        kept.append(save)
    # A checkpoint that is not uploaded is the user's own directory: never delete that.
    known = {save.name for save in kept}
    ours = [
        save.name
        for save in state.saves
        if save.name not in known and save.mode is not CheckpointUploadMode.NO_UPLOAD
    ]
    if ours:
        actions.append(Discard(tuple(ours)))
    state = state._replace(saves=tuple(kept))
    ended, more = _after_stop(state)
    # A run that ends keeps its last state. An attempt that follows a failure does not wait for it.
    at_the_end = ended.phase.ended or (state.lost is not None and not state.failures)
    if kept and at_the_end:
        return state, actions
    return ended, [*actions, *more]


def _after_stop(state: RunState) -> tuple[RunState, list[Action]]:
    """Every process is gone: what follows."""
    failures = tuple(state.failures)
    if state.interrupted:
        return state._replace(phase=Phase.INTERRUPTED), [End(Phase.INTERRUPTED, failures)]
    notice = state.notice
    preempted = notice is not None and notice.kind == "preemption"
    # Ranks that fail under a preemption most likely failed because of it: this does not count
    # against max_failures.
    if notice is not None and (state.stops_on_notice or (failures and preempted)):
        return _after_notice(state, notice)
    if not failures and state.lost is not None:
        failures = (_lost_last(state.lost),)
        state = state._replace(failures=failures)
    if not failures:
        return state._replace(phase=Phase.FINISHED), [End(Phase.FINISHED, ())]
    return _failed(state, failures)


def _lost_last(lost: Lost) -> WorkerFailure:
    """The function has returned on every rank, and its last state could not be kept."""
    why = summarise_error(lost.failure.error).rstrip(".")
    error = StorageError(
        f"every rank has finished, but the last state, {lost.save.name}, could not be saved: "
        f"{why}. Make room for it, and restore the run."
    )
    return WorkerFailure(lost.failure.rank, pack_error(error))


def _after_notice(state: RunState, notice: Notice) -> tuple[RunState, list[Action]]:
    """The group stopped because of a notice, or failed while it was being preempted."""
    if notice.kind == "resize":
        return _next_attempt(state, lambda size: [RecordAttemptStopped(notice, size)])
    # The driver itself has to go: no attempt of its own can follow. restore() resumes the run.
    if notice.kind == "reload" or notice.rank is None:
        return state._replace(phase=Phase.PREEMPTED), [
            RecordAttemptStopped(notice, None),
            End(Phase.PREEMPTED, tuple(state.failures)),
        ]
    preempted_attempts = state.preempted_attempts + 1
    if state.policy.decide_preempted(preempted_attempts) == "raise":
        error = PreemptedError(
            f"rank {notice.rank} was preempted ({preempted_attempts} so far), and "
            f"max_preemption_failures={state.policy.max_preemption_failures} allows no more."
        )
        failures = (*state.failures, WorkerFailure(notice.rank, pack_error(error)))
        state = state._replace(phase=Phase.FAILED, failures=failures)
        return state, [RecordFailure(failures, False), End(Phase.FAILED, failures)]
    state = state._replace(preempted_attempts=preempted_attempts)
    return _next_attempt(state, lambda size: [RecordAttemptStopped(notice, size)])


def _failed(state: RunState, failures: tuple[WorkerFailure, ...]) -> tuple[RunState, list[Action]]:
    if needs_verdict(first_cause(failures)) and (state.committed or state.saves):
        # One attempt more, which the user has not to allow: it ends where this one has, and tells
        # whether the step comes out the same.
        return _next_attempt(state, lambda size: [RecordFailure(failures, True)])
    state = _count_failure(state, failures)
    cause = first_cause(failures)
    # A missing module stays missing. But what worked in an earlier attempt may work again.
    hopeless = fails_again(cause) and not state.began
    state = state._replace(began=state.began or not cause.before_start)
    if hopeless or is_final(cause) or state.policy.decide(state.failed_attempts) == "raise":
        state = state._replace(phase=Phase.FAILED)
        return state, [RecordFailure(failures, False), End(Phase.FAILED, failures)]
    delay_s = state.policy.delay_s(state.fruitless)
    repeats = state.repeats
    return _next_attempt(
        state, lambda size: [RecordFailure(failures, True, repeats, delay_s)], delay_s
    )


def _count_failure(state: RunState, failures: tuple[WorkerFailure, ...]) -> RunState:
    """Count this failed attempt, and how many in a row failed alike or made no progress."""
    rows = state.rows - state.rows_before
    failure = (signature(first_cause(failures)), rows)
    # With a new checkpoint the next attempt starts elsewhere: that is progress.
    saved = (state.committed | _names_in_memory(state)) - state.committed_before
    # The same error after the same number of rows: the next attempt will most likely end there.
    repeated = not saved and failure == state.last_failure
    return state._replace(
        failed_attempts=state.failed_attempts + 1,
        last_failure=failure,
        repeats=state.repeats + 1 if repeated else 1,
        fruitless=state.fruitless + 1 if repeated or (not saved and not rows) else 0,
    )


def _next_attempt(
    state: RunState, record: Callable[[int], list[Action]], delay_s: float = 0.0
) -> tuple[RunState, list[Action]]:
    # What fits now, not when the attempt began: a GPU may have gone with the failed worker.
    size = state.scaling.size_for(state.capacity)
    if size is None:
        return _too_few(state)
    state = _fresh_attempt(state._replace(world_size=size))
    state = state._replace(attempt=state.attempt + 1)
    if delay_s:
        state = state._replace(phase=Phase.WAITING)
        return state, [*record(size), SetTimer("retry", delay_s)]
    return state, [*record(size), StartWorkers(state.attempt, size)]


def _restart(state: RunState) -> tuple[RunState, list[Action]]:
    """Start the next attempt after the wait. More or fewer workers may fit now."""
    size = state.scaling.size_for(state.capacity)
    if size is None:
        return _too_few(state)
    return _fresh_attempt(state._replace(world_size=size)), [StartWorkers(state.attempt, size)]


def _too_few(state: RunState) -> tuple[RunState, list[Action]]:
    """The smallest group does not fit: the run ends because of that, not of the failure before."""
    why, rank, before = "", 0, list[Action]()
    if state.failures:
        cause = first_cause(state.failures)
        why, rank = f" after {summarise_error(cause.error).rstrip('.')}", cause.rank
        # The journal keeps both: what failed, and why that could not be retried.
        before = [RecordFailure(tuple(state.failures), False)]
    error = InsufficientResourcesError(
        f"{state.capacity} worker(s) fit now{why}, and the run needs at least "
        f"{state.scaling.smallest}; restore it when there is more room."
    )
    failures = (WorkerFailure(rank, pack_error(error)),)
    state = state._replace(phase=Phase.FAILED, failures=failures)
    return state, [*before, RecordFailure(failures, False), End(Phase.FAILED, failures)]


def _is_taken(state: RunState, name: str) -> bool:
    return name in state.committed or _find(state, name) is not None


def _find(state: RunState, name: str) -> Save | None:
    return next((save for save in state.saves if save.name == name), None)


def _with_save(state: RunState, save: Save) -> RunState:
    return state._replace(
        saves=tuple(save if other.name == save.name else other for other in state.saves)
    )


def _ranks_of(save: Save) -> tuple[int, ...]:
    return tuple(rank for rank, report in enumerate(save.reports) if report is not None)


# One look-up by type, where a chain of isinstance() would be slowest for the last event.
_HANDLERS: dict[type, Callable[[RunState, Any], tuple[RunState, list[Action]]]] = {
    Ready: _ready,
    Reported: _reported,
    SnapshotPart: _snapshot_part,
    SealedPart: _sealed_part,
    SaveDropped: _save_dropped,
    SaveDue: _save_due,
    SavedPart: _saved_part,
    Recorded: _recorded,
    Committed: _committed,
    Arrived: _arrived,
    SaveFailed: _save_failed,
    Met: _met,
    Returned: _returned,
    TrackerOpened: _tracker_opened,
    ClosingTrackers: _closing_trackers,
    Raised: _raised,
    Gone: _gone,
    Interrupt: _interrupt,
    Preempt: _preempt,
    Reload: _reload,
    CapacityChanged: _capacity_changed,
    Stuck: _stuck,
    TimerFired: _timer_fired,
    Closed: _closed,
}
