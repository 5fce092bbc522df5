"""The loop around the state machine: performs its actions and feeds it what happens.

How a report travels:

    worker            loop                    here
    channel.send ───▶ Connection ───▶ _engine_event ─▶ transition ─▶ Record   journal
                                                                    ─▶ Commit   storage, journal
    channel.receive ◀─ WorkerGroup.send ◀─────────────────────────── ─▶ Answer
                                                                    then  callbacks, display
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from lockstep import settings
from lockstep.config import CheckpointUploadMode
from lockstep.console import Display, RunStatus
from lockstep.console.text import shorten
from lockstep.engine import WorkerGroup
from lockstep.engine.base import (
    EngineEvent,
    EngineNotice,
    Posted,
    Sampled,
    WorkerExited,
    WorkerInfo,
    WorkerMessage,
    WorkerPreempted,
)
from lockstep.engine.loop import EventLoop, Timer
from lockstep.error_record import pack_error, summarise_error
from lockstep.errors import CheckpointError, LockstepError, StopConditionError, StorageError
from lockstep.retention import CheckpointRecord
from lockstep.run_layout import LOG_DIRECTORY, run_title
from lockstep.train import protocol as m
from lockstep.train.context import ranks_by_machine
from lockstep.train.driver import events as e
from lockstep.train.driver.best import planned
from lockstep.train.driver.callbacks import RunListener
from lockstep.train.driver.cluster_memory import ClusterMemory
from lockstep.train.driver.failure import (
    FailurePolicy,
    describe,
    error_records,
    first_cause,
    needs_verdict,
    ranks_with_findings,
)
from lockstep.train.driver.hangs import HangWatch, Stalled
from lockstep.train.driver.memory import SnapshotKeeper, StateMemory
from lockstep.train.driver.notes import (
    NEVER_ROLLS_BACK,
    hang_note,
    held_note,
    lingering_note,
    missing_score_note,
    retry_note,
    stalled_note,
)
from lockstep.train.driver.notifier import RunNotifier
from lockstep.train.driver.pace import Pace
from lockstep.train.driver.reloading import Handed, Reloading
from lockstep.train.driver.resources import FIRST_S, append_sample, sample_interval
from lockstep.train.driver.run_plan import RunPlan
from lockstep.train.driver.save_plan import differing_files, has_part, share_groups
from lockstep.train.driver.state import RunState, transition
from lockstep.train.driver.storage_queue import StorageQueue
from lockstep.train.driver.terminal_loan import TerminalLoan
from lockstep.train.driver.validations import Validations
from lockstep.train.driver.worker_logs import OutputRouter
from lockstep.train.record.run import Run

__all__ = ["Controller"]

COLLECT_S = 0.1
"""After the first failure, how long the other ranks may take to send theirs."""

CAUSE_S = 0.5
"""Where only connections broke so far: how long the rank that broke them may take to say why."""

INSIST_S = 1.0
"""After the second Ctrl-C: how long workers and storage may take to end in order."""

EXIT_S = 60.0
"""How long workers may take to exit after everyone has finished (trackers upload then)."""

HELD_S = 1.0
"""How long a state may wait for the one before it without a remark."""

# One object for all ranks: an engine that has just packed a message does not pack it again.
_CONTINUE = m.Answer(False, [])


class Controller:
    """Drives one run. Everything here runs on the loop's thread; many controllers may share it.

    Args:
        plan: what to run.
        run: where to record it.
        loop: where events come from.
        callbacks: notified of what happens.
        display: shows it.
        decide: called with each row before its workers are answered: whether the run stops there,
            for good or (``"pause"``) to be resumed.
            It may raise StopConditionError, which fails the run; anything else is a bug.
        shares_loop: other runs use the loop, too, so its thread must not wait for a flush.
        reloading: the connection to ``lockstep run --reload``, where that has started the script.
    """

    def __init__(
        self,
        plan: RunPlan,
        run: Run,
        *,
        loop: EventLoop,
        callbacks: RunListener,
        display: Display,
        decide: Callable[[dict[str, Any]], m.Stop] | None = None,
        shares_loop: bool = False,
        reloading: Reloading | None = None,
    ) -> None:
        config = plan.run_config
        self._engine = plan.engine
        self._group_spec = plan.group
        self._start_from = plan.start_from
        self._all_announcements = plan.all_announcements
        self._streams = plan.streams
        self._loop = loop
        self._run = run
        self._display = display
        self._decide = decide
        self._shares_loop = shares_loop
        # A local publish is one rename. Only where other trials share this thread may it not block.
        self._waits_for_storage = run.storage.is_local and not shares_loop
        self._verbose = config.verbose
        self._has_guard = config.guard is not None
        self._never_rolls_back = (
            config.guard is not None
            and config.guard.action == "rollback"
            and config.failure_config.max_failures == 0
        )
        self._broken = run.broken
        """What the guard has found last."""
        if run.broken is not None and reloading is not None:
            self._broken = run.broken._replace(new_code=True)
        self._rollbacks = 0 if run.broken is None else run.broken.rollbacks
        self._notifier = RunNotifier(run, plan.run_context, callbacks, display, config.verbose)
        self._planned = planned(config.stop)
        self._storage = StorageQueue(run, config, loop, self._later, self._notifier.warn_once)
        self._hangs = HangWatch(
            config.hang_warning_s,
            config.hang_timeout_s,
            config.storage_timeout_s,
            settings.start_timeout_seconds(),
        )
        self._logged = 0
        self._loan = TerminalLoan(loop, display, self._send)
        self._unwatch_capacity: Callable[[], None] = lambda: None
        self._group: WorkerGroup | None = None
        self._output: OutputRouter | None = None
        self._workers: Sequence[WorkerInfo] = ()
        self.ended = False
        """The run is over, and so is its work on storage."""
        # Performing an action may cause events. They wait here until the actions of the current
        # event are done, so the state machine never sees an event halfway through another.
        self._events: deque[e.Event] = deque()
        self._timers: list[Timer] = []
        self._interrupts = 0
        self._insist: Timer | None = None
        self._handling = False
        self._started_at = 0.0
        # Committed checkpoints, oldest first, again once they are validated, and how many of these
        # each rank has been sent: an answer carries only the new ones.
        self._reported: list[m.Committed] = []
        self._known_to: list[int] = []
        self._reduced: dict[str, Any] | None = None
        self._reloading = reloading
        handed = None if reloading is None else reloading.taken
        self._memory = self._choose_memory(config.checkpoint_config.peer_copies, handed)
        self._digests: dict[str, dict[int, Any]] = {}
        """Of states that are being saved: what each rank has in common with others."""
        self._sharing: dict[str, int] = {}
        """Of the same states: how many ranks have a part."""
        self._late: list[tuple[e.Save, CheckpointRecord]] = []
        """Checkpoints that exist although the run did not wait for them."""
        self._held_since: dict[str, float] = {}
        """States that wait for the one before, and since when."""
        self._pace = Pace.of(config.checkpoint_config)
        self._asking: dict[int, tuple[int, bool]] = {}
        """Ranks that wait until every checkpoint is committed: which question it is, and whether
        they wait for validations, too."""
        self._questions = 0
        self._validations = Validations(
            plan.validation, run, loop, display, self._validated, self.interrupt
        )
        past = run.past()
        if not run.restored and plan.start_from is not None:
            # Numbers continue those of the checkpoint that the run starts from.
            past["next_checkpoint_id"] = plan.start_from.current_id or 0
        if handed is not None:
            past["saves"] = (handed.save(),)
        failures = config.failure_config
        self.state, self._first_actions = RunState.new(
            plan.group.size,
            FailurePolicy(failures.max_failures, failures.max_preemption_failures),
            scaling=plan.scaling,
            capacity=plan.engine.capacity(plan.group),
            every=self._pace.reports,
            # An object cannot be renamed: workers write it where it stays.
            writes_in_place=not run.storage.is_local,
            **past,
        )
        self._first_actions[:0] = [e.Adopt(save) for save in self.state.saves]

    def _choose_memory(self, peer_copies: int, handed: Handed | None) -> SnapshotKeeper[Any]:
        nodes = self._engine.node_memory
        if nodes is None or handed is not None:
            memory = StateMemory()
            if handed is not None:
                memory.take(handed.record.name, handed.record.id, handed.parts)
            return memory
        return ClusterMemory(
            nodes,
            self._loop,
            peer_copies,
            lambda why: self._notifier.warn_once(
                "peer",
                f"CheckpointConfig(peer_copies=1): no other node has a copy of the state ({why}). "
                "If a node is lost, the run restarts from storage.",
            ),
        )

    def start(self) -> None:
        """Begin; the loop does the rest until ``ended``."""
        self._display.start(self.status())
        self._draw()
        self._watch_for_hangs()
        if not self._engine.in_this_process:
            self._later(FIRST_S, self._sample_resources)
        if self.state.scaling.elastic:
            self._unwatch_capacity = self._engine.watch_capacity(
                self._loop,
                lambda: self._feed(e.CapacityChanged(self._engine.capacity(self._group_spec))),
            )
        if not self._run.storage.is_local:
            self._storage.sync_regularly()
        self._validations.start()
        if self._reloading is not None:
            self._loop.watch(self._reloading.session.fileno(), self._look_at_code)
        # As while an event is handled: an engine that cannot start feeds Closed during the loop.
        self._handling = True
        for action in self._first_actions:
            self._perform(action)
        self._handling = False
        self._handle_events()

    def preempt(self) -> None:
        """SIGTERM: once lets workers save and stop, twice kills them. Safe in a signal handler."""

        # The handler may run in the middle of a transition, so it only queues the call.
        def feed() -> None:
            if self.state.phase.ended and self._validations.cancel():
                return
            notice = self.state.notice
            if notice is not None and notice.kind == "preemption" and notice.rank is None:
                self._feed(e.TimerFired("preemption", self.state.attempt))
            else:
                self._feed(e.Preempt(None, self._preemption_deadline()))

        self._loop.call_soon(feed)

    def interrupt(self, *, by_user: bool = True) -> None:
        """Ctrl-C: once lets workers clean up, twice kills them. Safe in a signal handler.

        Where only storage is waited for, and the user knows that, the user's Ctrl-C abandons it.
        ``INSIST_S`` after the second one, nothing is waited for any more.
        """

        def feed() -> None:
            self._interrupts += by_user
            if by_user and self.state.phase.ended and self._validations.cancel():
                return
            # A worker or a store may ignore everything. This timer ends the wait in any case.
            if self._interrupts == 2 and self._insist is None:
                self._insist = self._loop.call_later(INSIST_S, self._end_now)
            gives_up = by_user and self._storage.is_late
            # Looked up before the event, which may end the run.
            only_storage = len(self.state.gone) == self.state.world_size
            self._feed(e.Interrupt(gives_up))
            if gives_up and only_storage:
                self._storage.give_up("until Ctrl-C")

        self._loop.call_soon(feed)

    def _end_now(self) -> None:
        if self.ended:
            return
        if self._group is not None:
            self._group.abandon()
        self._validations.cancel()
        self._feed(e.Interrupt(gives_up=True))
        self._storage.give_up("until Ctrl-C")

    def status(self) -> RunStatus:
        """What the display shows."""
        state = self.state
        # What could not be written ends with the run.
        failed = state.phase is e.Phase.FAILED
        newest = self._run.newest_stored() if failed else self._run.newest_checkpoint()
        shown = state.phase.value
        if state.attempt > 1 and state.phase in (e.Phase.STARTING, e.Phase.WAITING):
            shown = "restarting"
        elif state.phase is e.Phase.RUNNING and state.saves:
            shown = "saving"
        return RunStatus(
            state=shown,
            attempt=state.attempt,
            elapsed_s=self._run.elapsed_s,
            reports=self._run.rows,
            metrics=self._run.last_metrics,
            checkpoint=newest.name if newest else None,
            num_workers=0 if self._engine.in_this_process else self._group_spec.size,
            name=run_title(self._run.experiment_name, self._run.name),
            path=self._run.storage.uri,
            data_wait=self._run.data_wait,
            best_value=self._notifier.best,
            times=self._run.times_so_far(),
            total_reports=self._planned[0],
            total_s=self._planned[1],
        )

    def abort(self) -> None:
        """The loop has stopped before the end, at a Ctrl-C that waits for nothing: end here."""
        self.ended = True
        self.state = self.state._replace(phase=e.Phase.INTERRUPTED, interrupted=True)
        self._storage.abandon()
        if self._group is not None:
            self._group.abandon()

    def close(self) -> None:
        """Release everything; kills workers that are left. Idempotent."""
        if self._group is not None:
            self._group.close()
            self._group = None
        self._validations.close()
        self._storage.close()
        self._memory.close()
        self._streams.close()

    # ------------------------------------------------------------------------------------ events

    def _feed(self, event: e.Event) -> None:
        self._events.append(event)
        if not self._handling:
            self._handle_events()

    def _handle_events(self) -> None:
        self._handling = True
        try:
            while self._events:
                self.state, actions = transition(self.state, self._events.popleft())
                for action in actions:
                    self._perform(action)
        finally:
            self._handling = False
        if self._asking:
            self._answer_asking()
        self._notifier.deliver()

    def _engine_event(self, event: EngineEvent) -> None:
        if isinstance(event, WorkerMessage):
            self._message(event.rank, event.message)
        elif isinstance(event, WorkerExited):
            self._loan.end(event.rank)
            # First, because the last Gone may decide the size of the next attempt.
            if self.state.scaling.elastic and len(self.state.gone) + 1 >= self.state.world_size:
                self._feed(e.CapacityChanged(self._engine.capacity(self._group_spec)))
            self._feed(e.Gone(event.rank, event.exitcode, event.detail))
        elif isinstance(event, WorkerPreempted):
            self._feed(e.Preempt(event.rank, event.deadline or self._preemption_deadline()))
        elif isinstance(event, EngineNotice):
            self._display.message(event.text, "warning")
        elif isinstance(event, Sampled):
            append_sample(self._run.directory, self.state.attempt, event, time.time())

    def _message(self, rank: int, message: Any) -> None:
        # Reports come thousands of times a second, so they are first. Comparing types is faster
        # than isinstance(), and messages have no subclasses.
        kind = type(message)
        if kind is m.Report:
            if message.checkpoint is not None and message.checkpoint.is_state:
                self._reported_state(rank, message)
            else:
                self._feed(e.Reported(rank, message))
        elif kind is Posted:
            self._logged += 1
            rows = [item.json for item in message.items]
            self._run.record_logs(rank, rows)
            self._notifier.logged(rank, rows)
        elif kind is m.Saved:
            self._feed(e.SavedPart(rank, message.name, message.fingerprints))
        elif kind is m.Snapshotted:
            if message.memory is not None:
                node = self._workers[rank].node_id
                self._memory.add(message.name, message.memory, node)
                self._pace.took(time.monotonic(), message.seconds)
            self._feed(e.SnapshotPart(rank, message.name))
        elif kind is m.StateDigests:
            self._share_state(rank, message)
        elif kind is m.Sealed:
            sealed = e.SealedPart(rank, message.name)
            self._memory.seal(message.name, rank, message.checksum, lambda: self._feed(sealed))
        elif kind is m.NotSaved:
            self._not_saved(rank, message)
        elif kind is m.Hello:
            self._feed(e.Ready(rank, message.info, message.announcement))
        elif kind is m.Finished:
            if rank == 0:
                self._run.returned = message.returned
            self._run.note_return(rank, message.busy, message.waits)
            self._feed(e.Returned(rank))
        elif kind is m.FellBack:
            self._run.fall_back()
        elif kind is m.AskCommitted:
            self._ask_committed(rank, message.timeout_s, message.validated)
        elif kind is m.Meet:
            self._logged += 1  # progress, also where the ranks meet again before the next look
            self._feed(e.Met(rank, message.call, message.value))
        elif kind is m.TrackerOpened:
            self._feed(e.TrackerOpened(rank))
        elif kind is m.ClosingTrackers:
            self._feed(e.ClosingTrackers(rank, message.error))
        elif kind is m.Failed:
            self._feed(e.Raised(rank, message.error, message.before_start))
        elif kind is m.Interrupted:
            # Several ranks may be interrupted at once. The first message is enough.
            if not self.state.interrupted:
                self._feed(e.Interrupt())
        elif kind is m.BorrowTerminal:
            self._loan.request(rank)
        elif kind is m.ReturnTerminal:
            self._loan.end(rank)
        elif kind is m.Lingering:
            self._notifier.warn_once("lingering", lingering_note(rank, message.threads, EXIT_S))
        else:
            what = shorten(repr(message), 200)
            error = LockstepError(f"rank {rank} sent {what}, which nobody expects.")
            self._feed(e.Raised(rank, pack_error(error)))

    def _reported_state(self, rank: int, report: m.Report) -> None:
        now = time.monotonic()
        if self._pace.due(now, is_writing=any(save.is_state for save in self.state.saves)):
            self._feed(e.SaveDue())
        self._feed(e.Reported(rank, report))
        for save in self.state.saves:
            if save.held:
                self._held_since.setdefault(save.name, now)

    def _share_state(self, rank: int, message: m.StateDigests) -> None:
        """When every rank has said what it has, send each which ranks have the same."""
        save = next((save for save in self.state.saves if save.name == message.name), None)
        if save is None:
            return
        digests = self._digests.setdefault(save.name, {})
        digests[rank] = message.digests
        if len(digests) == self._sharing.get(save.name):
            del self._sharing[save.name]
            for other, groups in share_groups(self._digests.pop(save.name)).items():
                self._send(other, m.StateShares(groups))

    def _not_saved(self, rank: int, message: m.NotSaved) -> None:
        self._warn_unsaved(
            f"Rank {rank} could not save its state: {summarise_error(message.error)}"
        )
        self._feed(e.SaveDropped(rank, message.name, message.error))

    def _warn_unsaved(self, what: str) -> None:
        newest = self._run.newest_stored()
        kept = f"The newest checkpoint is {newest.name}" if newest else "There is no checkpoint yet"
        self._notifier.warn_once(
            "state",
            f"{what} Training continues; the next state is saved as usual, and the last one is "
            f"tried again when the run ends. {kept}.",
        )

    # ----------------------------------------------------------------------------------- actions

    def _perform(self, action: e.Action) -> None:
        _PERFORM[type(action)](self, action)

    def _start_workers(self, action: e.StartWorkers) -> None:
        if self._group is not None:
            # The group of the attempt before: its processes have exited, its sockets are open.
            self._group.close()
        self._started_at = time.perf_counter()
        self._group_spec = replace(self._group_spec, size=action.size)
        display = None if self._engine.in_this_process else self._display
        try:
            # Most trials print nothing, and creating a file takes longer than starting a worker.
            output = OutputRouter(
                self._run.directory, self._group_spec.size, display, create=not self._shares_loop
            )
        except OSError as error:
            failed = StorageError(f"could not open the workers' logs: {error}.")
            self._feed(e.Closed(pack_error(failed)))
            return
        self._output = output
        try:
            self._streams.configure(self._group_spec.size)
        except Exception as error:  # the user's own
            output.close()
            self._feed(e.Closed(pack_error(error)))
            return
        try:
            self._group = self._engine.start(
                self._group_spec, self._loop, self._engine_event, output
            )
        except LockstepError as error:
            output.close()
            self._feed(e.Closed(pack_error(error)))

    def _launch_workers(self, action: e.LaunchWorkers) -> None:
        run = self._run
        self._workers = action.workers
        run.begin_attempt(
            self.state.attempt,
            action.workers,
            time.perf_counter() - self._started_at,
            self._engine.cluster,
        )
        if not run.storage.is_local:
            self._storage.sync_journal_soon()  # the attempt's number is used now
        newest = run.newest_checkpoint()
        # The run's own progress comes before what it was started from.
        checkpoint = run.open_checkpoint(newest) if newest else self._start_from
        self._reported = [self._committed(record) for record in run.checkpoints]
        self._known_to = [len(self._reported)] * self.state.world_size
        self._asking = {}
        # All ranks or none: one that looked elsewhere could find another state.
        nodes = {worker.node_id for worker in action.workers}
        memory = self._memory.parts(newest.name, nodes) if newest else {}
        # One message a machine. With the places of all in each, a start of thousands of workers
        # would send thousands of times thousands of them.
        said = dict(enumerate(action.announcements))
        said = {rank: value for rank, value in said.items() if value is not None}
        streams = self._split_streams(resumes=newest is not None)
        stored = run.newest_stored()
        fallback: tuple[Any, Any] = self._start_from, None
        if stored is not None:
            fallback = (run.open_checkpoint(stored), stored.positions)
        for ranks in ranks_by_machine(action.workers):
            needed = said
            if not self._all_announcements:
                needed = {rank: said[rank] for rank in (0, *ranks) if rank in said}
            launch = m.Launch(
                ranks,
                action.workers[0].node_ip,
                needed,
                self.state.attempt,
                checkpoint,
                # A copy: in this process the message is not pickled, and the list grows.
                self._reported[:],
                newest.positions if newest else None,
                memory.get(action.workers[min(ranks)].node_id, ()),
                newest is not None and newest is run.pending,
                {rank: streams[rank] for rank in ranks} if streams else {},
                self._broken_step(),
                fallback,
            )
            for rank in ranks:
                self._send(rank, launch)
        self._notifier.started(checkpoint if newest else None)

    def _broken_step(self) -> m.Broken | None:
        """What the guard has found in the attempt before, and which report of this one it is."""
        if self._broken is None:
            return None
        number = self._broken.step - self._run.iteration
        return self._broken._replace(report=number, rollbacks=self._rollbacks)

    def _split_streams(self, *, resumes: bool) -> list[dict[str, m.Stream]]:
        if not self._streams:
            return []
        if resumes:
            self._notifier.warn_once(
                "streams",
                f"{self._streams.why_not_resumed}, which cannot resume within an epoch: their rows "
                "start again with an epoch.",
            )
        return self._streams.split(self._workers)

    def _order_save(self, action: e.OrderSave) -> None:
        save, plan = action
        directory = self._run.begin_save(save.name)
        # Two ranks may hold the same name. After one warning, comparing the files is wasted work.
        compare = {} if self._notifier.has_warned("differ") else plan.compare
        # Of a state ranks share what they have in common. All ranks in each order would be many.
        ranks = tuple(plan.write) if save.is_state else ()
        if save.is_state:
            self._sharing[save.name] = len(ranks)
        for rank in plan.write:
            order = m.SaveOrder(
                directory,
                save.name,
                plan.write[rank],
                compare.get(rank, ()),
                save.mode,
                ranks,
            )
            self._send(rank, order)
        if save.is_state:
            self._memory.expect(save.name, save.id)
            waited = time.monotonic() - self._held_since.pop(save.name, math.inf)
            if waited > HELD_S:
                every = self._run.checkpoint_config.every
                note = held_note(waited, self._run.storage.uri, every)
                self._notifier.warn_once("held", note)

    def _record(self, action: e.Record) -> None:
        if self._reloading is not None and self._engine.in_this_process:
            self._look_at_code()  # the function keeps the thread that would notice it
        # Journaled before anybody acts on the row, so that what was decided can be explained.
        row = self._run.record_report(action.reports, action.checkpoint)
        if self._has_guard:
            self._tell_findings(action.reports)
        if self._run.times.straggler is not None:
            self._notifier.warn_once("straggler", self._run.times.take_note())
        reduces = action.reports[0].reduce is not None
        # The training function may change what it gets, and callbacks still have to see the row.
        self._reduced = copy.deepcopy(self._run.last_metrics) if reduces else None
        stop: m.Stop = False
        if self._decide is not None:
            try:
                stop = self._decide(row)
            except StopConditionError as error:
                # Before Recorded: a run that is stopping does not answer its ranks.
                self._feed(e.Raised(0, pack_error(error)))
        self._feed(e.Recorded(stop))
        self._notifier.reported(action.reports, action.checkpoint, row)

    def _tell_findings(self, reports: Sequence[m.Report]) -> None:
        """Journal what the guard has found, and warn of each kind once."""
        for rank, report in enumerate(reports):
            for kind, text in (report.found or {}).items():
                everywhere = all(kind in (other.found or {}) for other in reports)
                only = " Every rank has it." if everywhere else " Not every rank has it."
                only = "" if len(reports) == 1 else only
                self._run.record_finding(rank, kind, text)
                self._notifier.warn_once(f"guard {kind}", f"Guard: {text}{only}")

    def _commit(self, action: e.Commit) -> None:
        save = action.save
        if save.is_row and save.mode is not CheckpointUploadMode.ASYNC:
            # Callbacks get the report together with its checkpoint, and may open that.
            self._notifier.hold()
        record = self._run.describe_checkpoint(save.name, save.id, save.report_number, save.reports)
        stage = self._run.stage_number(save.name)
        self._warn_of_different_files(save)
        attribute = self._run.checkpoint_config.checkpoint_score_attribute
        unscored = record.score is None and record.validation is None
        if unscored and attribute is not None and not self._run.has_score:
            note = missing_score_note(attribute, record.metrics)
            self._notifier.warn_once("score", note)
        if self._waits_for_storage:
            # Faster than a thread; and a function that runs in this process keeps the loop's
            # thread, so what another thread sends back would not be handled in time.
            error = None
            try:
                self._run.publish(record, stage)
            except LockstepError as failed:
                error = failed
            self._published(save, record, error)
            return
        self._submit(save, record, lambda: self._run.publish(record, stage))

    def _submit(self, save: e.Save, record: CheckpointRecord, commit: Callable[[], None]) -> None:
        """Commit in the storage thread."""
        abandoned = self._storage.abandoned

        def committed(error: BaseException | None) -> None:
            if abandoned == self._storage.abandoned:
                self._published(save, record, error)
            elif error is None:
                self._arrived_late(save, record)

        # The callback runs in the storage thread; the state belongs to the loop's.
        self._storage.submit(commit).add_done_callback(
            lambda done: self._loop.call_soon(lambda: committed(done.exception()))
        )

    def _adopt(self, action: e.Adopt) -> None:
        save = action.save
        # Described once, when its attempt is over: the next attempt begins with its counts.
        record = self._run.pending
        if record is None or record.id != save.id:
            record = self._run.describe_checkpoint(
                save.name, save.id, save.report_number, save.reports
            )
        self._run.pending = record
        if self._reloading is not None and self._stops_for_reload():
            parts = self._parts_here(save.name)
            if self._reloading.give(record, parts, self._run.metadata):
                self._feed(e.Committed(save.name))  # as safe as this driver can make it
                return

        directory = self._run.stage(save.name)
        stage = self._run.stage_number(save.name)
        abandoned = self._storage.abandoned

        def write() -> None:
            self._memory.write(save.name, self._run.storage, directory)
            if abandoned != self._storage.abandoned:  # the files may be deleted
                raise StorageError(f"{save.name} was abandoned.")
            self._run.publish(record, stage)

        if self._engine.in_this_process:
            error: BaseException | None = None
            try:
                write()
            except LockstepError as failed:
                error = failed
            self._published(save, record, error)
            return
        self._submit(save, record, write)

    def _published(
        self, save: e.Save, record: CheckpointRecord, error: BaseException | None
    ) -> None:
        self._notifier.release()
        if all(save.id != awaited.id for awaited in self.state.saves):
            return  # abandoned before: it may exist now, but the run does not count on it
        if error is not None:
            if save.adopted:
                self._notifier.warn_once(
                    "adopt",
                    f"The last state of the workers that ended could not be written to "
                    f"{self._run.storage.uri}: {error}",
                )
            elif save.is_state:
                self._warn_unsaved(f"{save.name} could not be published: {error}")
                if save.in_memory:
                    self._run.pending = record  # described once; the next attempt starts from it
            torn = save.adopted and isinstance(error, CheckpointError)
            self._feed(e.SaveFailed(save.name, pack_error(error), torn))
            return
        if save.is_state:
            self._pace.wrote(time.monotonic())
        self._keep(save, record)
        self._feed(e.Committed(save.name))  # last: the end of the run may have waited for it

    def _arrived_late(self, save: e.Save, record: CheckpointRecord) -> None:
        """Storage has answered after all: the checkpoint exists, and the run did not wait for it.

        It is complete. If it is the newest it counts, else nobody needs it. That is known for a
        state that the driver writes; else the run may be in another attempt, and it is known at
        the end.
        """
        awaited = [other.id for other in self.state.saves if other.name == save.name]
        if self.ended or save.id in awaited:  # the next try finds it there
            return
        if not save.adopted and not self.state.phase.ended:
            self._late.append((save, record))
            return
        newest = self._run.newest_stored()
        if awaited or (newest is not None and newest.id > record.id):
            self._storage.delete(record)
            return
        self._keep(save, record)
        self._feed(e.Arrived(save))

    def _keep(self, save: e.Save, record: CheckpointRecord) -> None:
        """A checkpoint is published: journal it, and notify everyone."""
        run = self._run
        self._memory.drop_until(save.id)
        if self._reloading is not None:
            self._reloading.stored()
        # The new checkpoint is journaled before old ones are deleted: there is always one left.
        surplus = run.record_checkpoint(record)
        checkpoint = run.open_checkpoint(record)
        self._reported.append(self._committed(record))
        if record.awaits_validation:
            self._validations.add(record)
        for old in surplus:
            self._storage.delete(old)
        if not run.storage.is_local:
            self._storage.sync_soon()
        self._notifier.committed(checkpoint)

    def _committed(self, record: CheckpointRecord) -> m.Committed:
        """What ranks learn of a checkpoint."""
        status = record.validation["status"] if record.validation else "COMMITTED"
        opened = self._run.open_checkpoint(record)
        return m.Committed(record.id, opened, record.metrics, status)

    def _validated(self, record: CheckpointRecord) -> None:
        self._reported.append(self._committed(record))
        for old in self._run.drop_surplus():
            self._storage.delete(old)
        if not self._run.storage.is_local:
            self._storage.sync_soon()
        self._answer_asking()

    def _ask_committed(self, rank: int, timeout_s: float | None, validated: bool) -> None:
        self._questions += 1
        question = self._questions
        self._asking[rank] = question, validated
        self._answer_asking()
        if timeout_s is not None and rank in self._asking:
            self._later(timeout_s, lambda: self._answer_late(rank, question))

    def _answer_asking(self) -> None:
        """Answer the ranks that wait until every checkpoint is committed."""
        if not self._asking or self.state.saves or self.state.phase is not e.Phase.RUNNING:
            return
        validating = self._validations.pending
        ranks = tuple(
            rank for rank, (_, validated) in self._asking.items() if not (validated and validating)
        )
        for rank in ranks:
            del self._asking[rank]
        if ranks:
            self._answer(e.Answer(ranks, False))

    def _answer_late(self, rank: int, question: int) -> None:
        asked = self._asking.get(rank)
        if asked and asked[0] == question and self.state.phase is e.Phase.RUNNING:
            del self._asking[rank]
            self._answer(e.Answer((rank,), False))

    def _discard(self, action: e.Discard) -> None:
        # An abandoned write may still arrive: its files are deleted when the name is used again.
        later = bool(self._storage.abandoned)
        for name in action.names:
            if not action.in_memory:
                self._memory.drop(name)
            try:
                self._run.discard(name, later=later, in_memory=action.in_memory)
            except LockstepError as error:
                self._notifier.warn_once(
                    "discard", f"Could not delete the unfinished {name}: {error}"
                )

    def _answer(self, action: e.Answer) -> None:
        known = len(self._reported)
        answer = _CONTINUE
        if action.stop or action.notice is not None:
            stop: m.Stop = action.stop
            if stop is True and self._keeps_state():
                stop = "memory"
            answer = m.Answer(stop, [], action.notice)
        if self._reduced is not None:  # every rank waits at this report: the answer is for all
            answer, self._reduced = answer._replace(reduced=self._reduced), None
        for rank in action.ranks:
            if self._known_to[rank] < known:
                news = self._reported[self._known_to[rank] :]
                self._known_to[rank] = known
                self._send(rank, answer._replace(committed=news))
            else:
                self._send(rank, answer)

    def _look_at_code(self) -> None:
        """If the code has changed, let the workers save, and stop. Once."""
        assert self._reloading is not None
        session = self._reloading.session
        descriptor, known = session.fileno(), session.stopping
        if descriptor < 0:
            return  # the process above is gone
        changed = session.look()
        if changed is not None and known is None:
            text = f"{changed} has changed: the run stops at the next report."
            self._display.message(text)
            self._feed(e.Reload())
        if changed is not None or session.fileno() < 0:
            self._loop.unwatch(descriptor)

    def _stops_for_reload(self) -> bool:
        notice = self.state.notice
        return notice is not None and notice.kind == "reload" and self.state.stops_on_notice

    def _parts_here(self, name: str) -> tuple[m.MemoryPart, ...]:
        """A snapshot whose memory this process has opened; empty on a cluster."""
        if not isinstance(self._memory, StateMemory):
            return ()
        return self._memory.parts(name, ("",)).get("", ())

    def _keeps_state(self) -> bool:
        """Whether ranks that stop for new code may leave their state in memory, unwritten."""
        if self._reloading is None or not self._reloading.gives or not self._stops_for_reload():
            return False
        states = [save for save in self.state.saves if save.is_state and not save.dropped]
        return bool(states) and len(self._parts_here(states[-1].name)) == sum(
            map(has_part, states[-1].reports)
        )

    def _share_value(self, action: e.ShareValue) -> None:
        shared = m.Shared(action.value)
        for rank in range(self.state.world_size):
            self._send(rank, shared)

    def _close_trackers(self, action: e.CloseTrackers) -> None:
        for rank in action.ranks:
            self._send(rank, m.CloseTrackers())

    def _release_workers(self, action: e.ReleaseWorkers) -> None:
        for rank in range(self.state.world_size):
            self._send(rank, m.Exit())

    def _interrupt_workers(self, action: e.InterruptWorkers) -> None:
        if self._group is not None:
            self._group.interrupt()

    def _kill_workers(self, action: e.KillWorkers) -> None:
        if self._group is not None:
            self._group.kill()

    def _set_timer(self, action: e.SetTimer) -> None:
        known = {
            "collect": COLLECT_S,
            "cause": CAUSE_S,
            "grace": settings.stop_grace_seconds(),
            "exit": EXIT_S,
            "preemption": self._preemption_left_s(),
        }
        seconds = known[action.kind] if action.seconds is None else action.seconds
        # The attempt is read now: when the timer fires, it may be another one.
        fired = e.TimerFired(action.kind, self.state.attempt)
        self._later(seconds, lambda: self._feed(fired))

    def _record_failure(self, action: e.RecordFailure) -> None:
        failures, retry, repeats, delay_s = action
        found, broken = ranks_with_findings(failures), None
        if found:
            text = first_cause(failures).error["message"]
            step, size = self._run.iteration + 1, self._group_spec.size
            self._rollbacks += not needs_verdict(first_cause(failures))
            broken = m.Broken(step, 0, found, size, text, self._rollbacks)
            self._broken = broken
        self._pace.failed()
        # The state counts the next attempt already, where there is one.
        attempt = self.state.attempt - 1 if retry else self.state.attempt
        # The size of the group that failed: the next attempt's may differ.
        text = describe(failures, 1, self._group_spec.size)
        self._run.record_failure(attempt, error_records(failures), text, retry=retry, broken=broken)
        self._notifier.failed(failures, retry=retry)
        if retry:
            note = retry_note(attempt, repeats, delay_s, self._origin())
            self._display.message(f"{text} {note}", "warning")
        elif broken is not None and self._never_rolls_back:
            self._display.message(NEVER_ROLLS_BACK, "warning")

    def _record_attempt_stopped(self, action: e.RecordAttemptStopped) -> None:
        notice, size = action
        attempt = self.state.attempt - (size is not None)
        self._run.record_attempt_stopped(attempt, notice.kind, notice.rank, size)
        if size is None:
            return
        why = f"Rank {notice.rank} was preempted"
        if notice.kind == "resize":
            more = size >= self._group_spec.size
            why = f"There is room for {'more' if more else 'fewer'} workers"
        self._display.message(
            f"{why}: starting attempt {attempt + 1} with {size}, {self._origin()}."
        )

    def _origin(self) -> str:
        newest = self._run.newest_checkpoint()
        return f"from {newest.name}" if newest else "from the beginning"

    def _explain_hang(self, action: e.ExplainHang) -> None:
        self._display.message(hang_note(action, logs=self._only_logs), "warning")
        if not action.starting:
            self._dump_stacks(action.missing)

    @property
    def _only_logs(self) -> str | None:
        """Where what workers print is, if the terminal does not show it."""
        return None if self._verbose else os.path.join(self._run.directory, LOG_DIRECTORY)

    def _dump_stacks(self, ranks: Iterable[int]) -> None:
        if self._group is not None and self._output is not None:
            for rank in ranks:
                self._output.expect_stacks(rank)
                self._group.dump_stacks(rank)

    def _end(self, action: e.End) -> None:
        self._unwatch_capacity()
        for timer in self._timers:
            timer.cancel()
        if self._group is not None:
            self._group.close()
            self._group = None
        for late in self._late:
            self._arrived_late(*late)
        if action.phase in (e.Phase.INTERRUPTED, e.Phase.PREEMPTED):
            self._validations.close()  # a restored run validates what is pending
        # The run has ended only when storage has: copies and deletes may still be queued.
        self._validations.drain(lambda: self._storage.drain(lambda: self._conclude(action)))

    def _conclude(self, action: e.End) -> None:
        self.ended = True
        # drain() has set timers of its own since.
        for timer in self._timers:
            timer.cancel()
        if self._insist is not None:
            self._insist.cancel()
        self._notifier.ended(action.phase)

    # ----------------------------------------------------------------------------------- helpers

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        # Forgotten at the end: a timer that is still to fire would keep all of this in memory.
        now = time.monotonic()
        self._timers = [timer for timer in self._timers if timer.when > now]
        self._timers.append(self._loop.call_later(seconds, call))

    def _send(self, rank: int, message: Any) -> None:
        if self._group is not None:
            self._group.send(rank, message)

    def _warn_of_different_files(self, save: e.Save) -> None:
        names = differing_files(save.fingerprints)
        if names:
            self._notifier.warn_once(
                "differ",
                f"Several ranks saved different files named {', '.join(names[:3])}: the lowest "
                "rank's is kept; put the rank into the name to keep them all.",
            )

    def _draw(self) -> None:
        interval = self._display.interval_s
        if interval is None or self.state.phase.ended:
            return
        self._display.update(self.status())
        self._display.refresh()
        self._later(interval, self._draw)

    def _preemption_deadline(self) -> float:
        return time.time() + settings.preemption_grace_seconds()

    def _preemption_left_s(self) -> float:
        notice = self.state.notice
        if notice is None or notice.deadline is None:
            return settings.preemption_grace_seconds()
        return max(0.0, notice.deadline - time.time())

    def _watch_for_hangs(self) -> None:
        if self._hangs.interval_s is None or self.state.phase.ended:
            return
        now = time.monotonic()
        stalled = self._hangs.stalled(self.state, now)
        if stalled is not None:
            self._report_stalled(stalled)
        if self._asking and self._validations.pending:
            self._logged += 1  # a rank waits for a validation, which may take long
        if self._loan.wanted:
            self._logged += 1  # the user of a debugger takes time to think: that is no hang
        if self._group is not None and self._group.waits_for_room:
            self._logged += 1
        stuck = self._hangs.stuck(self.state, now, self._logged)
        # In this process the loop stands still while the function runs, and so does the watch.
        if stuck is not None and self._group is not None and not self._engine.in_this_process:
            problems = map(self._group.problem, range(self.state.world_size))
            detail = "; ".join(dict.fromkeys(filter(None, problems)))
            self._feed(stuck._replace(detail=detail))
        self._later(self._hangs.interval_s, self._watch_for_hangs)

    def _sample_resources(self) -> None:
        if self.state.phase.ended:
            return
        wait = FIRST_S
        if self.state.phase is e.Phase.RUNNING:
            if self._group is not None:
                self._group.sample()
            wait = sample_interval(self._run.elapsed_s)
        self._later(wait, self._sample_resources)

    def _report_stalled(self, stalled: Stalled) -> None:
        name, doing = stalled.name, stalled_note(stalled, self._run.storage.uri)
        if not stalled.fatal:
            self._storage.is_late = True
            self._notifier.warn_once(f"stalled {name}", f"{name} {doing}.")
            return
        # The publish cannot be cancelled, only ignored. Later work gets threads that are not stuck.
        self._storage.abandon()
        self._notifier.release()
        self._run.discard(name, later=True, in_memory=True)
        error = StorageError(
            f"{name} timed out after RunConfig(storage_timeout_s={self._hangs.storage_s:g}): "
            f"it {doing}."
        )
        self._feed(e.SaveFailed(name, pack_error(error), timed_out=True))


_PERFORM: dict[type, Callable[[Controller, Any], None]] = {
    e.StartWorkers: Controller._start_workers,
    e.LaunchWorkers: Controller._launch_workers,
    e.OrderSave: Controller._order_save,
    e.Record: Controller._record,
    e.Commit: Controller._commit,
    e.Adopt: Controller._adopt,
    e.Discard: Controller._discard,
    e.Answer: Controller._answer,
    e.ShareValue: Controller._share_value,
    e.CloseTrackers: Controller._close_trackers,
    e.ReleaseWorkers: Controller._release_workers,
    e.InterruptWorkers: Controller._interrupt_workers,
    e.KillWorkers: Controller._kill_workers,
    e.SetTimer: Controller._set_timer,
    e.ExplainHang: Controller._explain_hang,
    e.RecordFailure: Controller._record_failure,
    e.RecordAttemptStopped: Controller._record_attempt_stopped,
    e.End: Controller._end,
}
