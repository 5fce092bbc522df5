"""The loop around the state machine: performs its actions and feeds it what happens.

How a report travels:

    worker            loop                    here
    channel.send ───▶ Connection ───▶ _engine_event ─▶ transition ─▶ Record   journal
                                                                    ─▶ Commit   storage, journal
    channel.receive ◀─ WorkerGroup.send ◀─────────────────────────── ─▶ Answer
                                                                    then  callbacks, display
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from lockstep import settings
from lockstep.callback import RunContext, TrialSnapshot
from lockstep.checkpoint import Checkpoint
from lockstep.config import RunConfig, StopCondition
from lockstep.console import Display, RunStatus
from lockstep.engine import Engine, GroupSpec, WorkerGroup
from lockstep.engine.base import (
    EngineEvent,
    Posted,
    WorkerExited,
    WorkerMessage,
    WorkerPreempted,
)
from lockstep.engine.loop import EventLoop, Timer
from lockstep.error_record import pack_error, unpack_error
from lockstep.errors import LockstepError, StopConditionError, StorageError
from lockstep.jobs import JobThread
from lockstep.metrics import look_up
from lockstep.retention import CheckpointRecord
from lockstep.run_layout import LOG_DIRECTORY
from lockstep.train import protocol as m
from lockstep.train.driver import events as e
from lockstep.train.driver.callbacks import RunListener
from lockstep.train.driver.failure import FailurePolicy, describe
from lockstep.train.driver.hangs import HangWatch, Stalled
from lockstep.train.driver.notes import (
    hang_note,
    silence_note,
    stalled_note,
    unanswered_note,
    unknown_keys_note,
)
from lockstep.train.driver.save_plan import differing_files
from lockstep.train.driver.scaling import ScalingPolicy
from lockstep.train.driver.state import RunState, transition
from lockstep.train.driver.worker_logs import OutputRouter
from lockstep.train.record.run import Run

__all__ = ["Controller", "reaches"]

COLLECT_S = 0.1
"""After the first failure, how long the other ranks may take to tell theirs."""

CAUSE_S = 0.5
"""How long the rank may take that has broken the connections which the others lost."""

EXIT_S = 60.0
"""How long workers may take to exit after everyone has finished (trackers upload then)."""

SYNC_INTERVAL_S = 10.0
"""How old the journal on remote storage may get between two checkpoints."""


# One object for all: an engine packs a message that it has just sent only once.
_GO_ON = m.Answer(False, [])


class Controller:
    """Drives one run. Everything here runs on the loop's thread; many controllers may share one."""

    def __init__(
        self,
        *,
        engine: Engine,
        loop: EventLoop,
        run: Run,
        group_spec: GroupSpec,
        run_config: RunConfig,
        run_context: RunContext,
        callbacks: RunListener,
        display: Display,
        start_from: Checkpoint | None,
        scaling: ScalingPolicy,
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._run = run
        self._group_spec = group_spec
        self._stop = run_config.stop
        self._run_context = run_context
        self._callbacks = callbacks
        self._display = display
        self._verbose = run_config.verbose
        self._start_from = start_from
        self._hangs = HangWatch(
            run_config.hang_warning_s, run_config.hang_timeout_s, run_config.storage_timeout_s
        )
        self._end_waits = run_config.hang_warning_s, run_config.storage_timeout_s
        self._unwatch_capacity: Callable[[], None] = lambda: None
        self._group: WorkerGroup | None = None
        self._storage_thread = JobThread("lockstep-storage")
        self._last_job: Future[Any] | None = None
        self.ended = False
        """Nothing is left to do, in storage either."""
        self._stalled = False
        # Without warnings nobody would ever be told.
        self._storage_is_late = run_config.hang_warning_s is None
        self._sync_waits = False
        self._give_up: Callable[[str], None] = lambda why: None
        self._events: deque[e.Event] = deque()
        self._afterwards: deque[Callable[[], None]] = deque()
        self._timers: list[Timer] = []
        self._handling = False
        self._started_at = 0.0
        self._newest: Checkpoint | None = None
        self._reported: list[tuple[Checkpoint, dict[str, Any]]] = []
        self._known_to: list[int] = []
        self._last_result: dict[str, Any] = {}
        self._told: set[str] = set()
        self._callbacks_started = False
        failure_config = run_config.failure_config
        past = run.past()
        if not run.restored and start_from is not None:
            past["next_checkpoint_id"] = start_from.current_id or 0
        self.state, self._first_actions = RunState.new(
            group_spec.size,
            FailurePolicy(failure_config.max_failures, failure_config.max_preemption_failures),
            scaling=scaling,
            capacity=engine.capacity(group_spec),
            **past,
        )

    def start(self) -> None:
        """Begin; the loop does the rest until ``ended``."""
        self._display.start(self.status())
        self._draw()
        self._watch_for_hangs()
        if self.state.scaling.elastic:
            self._unwatch_capacity = self._engine.watch_capacity(
                self._loop,
                lambda: self._feed(e.CapacityChanged(self._engine.capacity(self._group_spec))),
            )
        if not self._run.storage.is_local:
            self._sync_regularly()
        self._handling = True
        for action in self._first_actions:
            self._perform(action)
        self._handling = False
        self._handle_events()

    def preempt(self) -> None:
        """SIGTERM: once lets workers save and stop, twice kills them. Safe in a signal handler."""

        def tell() -> None:
            notice = self.state.notice
            if notice is not None and notice.kind == "preemption" and notice.rank is None:
                self._feed(e.TimerFired("preemption", self.state.attempt))
            else:
                self._feed(e.Preempt(None, self._preemption_deadline()))

        self._loop.call_soon(tell)

    def interrupt(self, *, by_user: bool = True) -> None:
        """Ctrl-C: once lets workers clean up, twice kills them. Safe in a signal handler.

        Where only storage is waited for, and it has been said to be late, the user's gives it up.
        """

        def tell() -> None:
            gives_up = by_user and self._storage_is_late
            only_storage = len(self.state.gone) == self.state.world_size
            self._feed(e.Interrupt(gives_up))
            if gives_up and only_storage:
                self._give_up("until Ctrl-C")

        self._loop.call_soon(tell)

    def status(self) -> RunStatus:
        """What the display shows."""
        newest = self._run.newest_checkpoint()
        state = self.state
        shown = state.phase.value
        if state.phase is e.Phase.STARTING and state.attempt > 1:
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
            name=self._run.name,
            path=self._run.storage.uri,
            data_wait=self._run.data_wait,
        )

    def close(self) -> None:
        """Release everything; kills workers that are left. Idempotent."""
        if self._group is not None:
            self._group.close()
            self._group = None
        # Nothing is under way, unless this is the way out of an error.
        self._storage_thread.close(settings.stop_grace_seconds())

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
        self._tell_others()

    def _tell_others(self) -> None:
        """Callbacks and display hear of things once the workers have their answers."""
        while self._afterwards:
            self._afterwards.popleft()()

    def _engine_event(self, event: EngineEvent) -> None:
        if isinstance(event, WorkerMessage):
            self._message(event.rank, event.message)
        elif isinstance(event, WorkerExited):
            if self.state.scaling.elastic:
                self._feed(e.CapacityChanged(self._engine.capacity(self._group_spec)))
            self._feed(e.Gone(event.rank, event.exitcode, event.detail))
        elif isinstance(event, WorkerPreempted):
            self._feed(e.Preempt(event.rank, self._preemption_deadline()))

    def _message(self, rank: int, message: Any) -> None:
        kind = type(message)
        if kind is m.Report:
            self._feed(e.Reported(rank, message))
        elif kind is Posted:
            self._run.record_logs(rank, [item.json for item in message.items])
        elif kind is m.Saved:
            self._feed(e.SavedPart(rank, message.name, message.fingerprints))
        elif kind is m.Snapshotted:
            self._feed(e.SnapshotPart(rank, message.name))
        elif kind is m.Hello:
            self._feed(e.Ready(rank, message.info, message.announcement))
        elif kind is m.Finished:
            self._feed(e.Returned(rank))
        elif kind is m.TrackerOpened:
            self._feed(e.TrackerOpened(rank))
        elif kind is m.ClosingTrackers:
            self._feed(e.ClosingTrackers(rank, message.error))
        elif kind is m.Failed:
            self._feed(e.Raised(rank, message.error))
        elif kind is m.Interrupted:
            if not self.state.interrupted:
                self._feed(e.Interrupt())
        else:
            raise LockstepError(f"rank {rank} sent {message!r}, which nobody expects.")

    # ----------------------------------------------------------------------------------- actions

    def _perform(self, action: e.Action) -> None:
        _PERFORM[type(action)](self, action)

    def _start_workers(self, action: e.StartWorkers) -> None:
        if self._group is not None:
            self._group.close()
        self._started_at = time.perf_counter()
        self._group_spec = replace(self._group_spec, size=action.size)
        display = None if self._engine.in_this_process else self._display
        try:
            output = OutputRouter(self._run.directory, self._group_spec.size, display)
        except OSError as error:
            failed = StorageError(f"could not open the workers' logs: {error}.")
            self._feed(e.Closed(pack_error(failed)))
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
        run.begin_attempt(
            self.state.attempt, action.workers, time.perf_counter() - self._started_at
        )
        newest = run.newest_checkpoint()
        checkpoint = run.open_checkpoint(newest) if newest else self._start_from
        self._reported = [(run.open_checkpoint(r), r.metrics) for r in run.checkpoints]
        self._known_to = [len(self._reported)] * self.state.world_size
        launch = m.Launch(
            action.workers,
            action.announcements,
            self.state.attempt,
            checkpoint,
            self._reported[:],
            newest.positions if newest else None,
        )
        for rank in range(self.state.world_size):
            self._send(rank, launch)
        if not self._callbacks_started:
            self._callbacks_started = True
            self._last_result = run.first_result()
            if newest:
                self._newest = checkpoint
            self._callbacks.start(self._trial("RUNNING"), self._run_context, run.restored)

    def _order_save(self, action: e.OrderSave) -> None:
        save, plan = action
        self._run.clear_stage(save.name)
        storage = self._run.storage
        # Two ranks may hold the same name; once a difference has been told, reading is wasted.
        compare = plan.compare if "differ" not in self._told else {}
        for rank in plan.write:
            order = m.SaveOrder(
                storage.stage(save.name),
                save.name,
                plan.write[rank],
                compare.get(rank, ()),
                save.mode,
            )
            self._send(rank, order)

    def _record(self, action: e.Record) -> None:
        run = self._run
        run.record_report(action.reports, action.checkpoint)
        self._feed(e.Recorded(self._stop is not None and self._should_stop(run.last_row())))
        self._afterwards.append(lambda: self._tell_report(action))

    def _tell_report(self, action: e.Record) -> None:
        run = self._run
        row = run.last_row()
        trial = self._trial("RUNNING")
        self._last_result = row
        checkpoint = None
        if action.checkpoint is not None:
            checkpoint = run.open_reported(action.reports, action.checkpoint)
        ranks = [report.metrics or {} for report in action.reports]
        self._callbacks.report(run.iteration, trial, row, ranks, checkpoint)
        if action.reports[0].reduce is not None and "reduce" not in self._told:
            note = unknown_keys_note(action.reports)
            if note is not None:
                self._warn_once("reduce", note)
        if self._verbose == 2:
            self._display.report(run.rows, run.last_metrics)

    def _commit(self, action: e.Commit) -> None:
        save = action.save
        record = self._run.describe_checkpoint(save)
        self._tell_differing(save)
        if self._run.storage.is_local:
            self._published(save, record, _outcome(lambda: self._run.publish(record)))
            return
        future = self._in_background(self._run.publish, record)
        future.add_done_callback(
            lambda done: self._loop.call_soon(
                lambda: self._published(save, record, done.exception())
            )
        )

    def _published(
        self, save: e.Save, record: CheckpointRecord, error: BaseException | None
    ) -> None:
        if all(save.id != awaited.id for awaited in self.state.saves):
            return  # it was given up, and may be there now all the same
        if error is not None:
            self._feed(e.SaveFailed(save.name, pack_error(error)))
            return
        run = self._run
        surplus = run.committed(record)
        checkpoint = run.open_checkpoint(record)
        self._reported.append((checkpoint, record.metrics))
        for old in surplus:
            self._in_background(self._delete, old)
        if not run.storage.is_local:
            self._sync_soon()
        self._newest = checkpoint
        trial, iteration = self._trial("RUNNING"), run.iteration
        self._afterwards.append(lambda: self._callbacks.checkpoint(iteration, trial, checkpoint))
        self._feed(e.Committed(save.name))  # last: it may be what the end was waiting for

    def _delete(self, record: CheckpointRecord) -> None:
        try:
            self._run.delete(record)
        except LockstepError as error:
            self._warn_once("delete", f"Could not delete the old checkpoint {record.name}: {error}")

    def _discard(self, action: e.Discard) -> None:
        for name in action.names:
            try:
                self._run.discard(name, later=self._stalled and not self._run.storage.is_local)
            except LockstepError as error:
                self._warn_once("discard", f"Could not clear away the unfinished {name}: {error}")

    def _answer(self, action: e.Answer) -> None:
        known = len(self._reported)
        answer = _GO_ON
        if action.stop or action.notice is not None:
            answer = m.Answer(action.stop, [], action.notice)
        for rank in action.ranks:
            if self._known_to[rank] < known:
                news = self._reported[self._known_to[rank] :]
                self._known_to[rank] = known
                self._send(rank, answer._replace(committed=news))
            else:
                self._send(rank, answer)

    def _let_go(self, action: e.CloseTrackers) -> None:
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
        seconds = {
            "collect": COLLECT_S,
            "cause": CAUSE_S,
            "grace": settings.stop_grace_seconds(),
            "exit": EXIT_S,
            "preemption": settings.preemption_grace_seconds(),
        }[action.kind]
        fired = e.TimerFired(action.kind, self.state.attempt)
        self._later(seconds, lambda: self._feed(fired))

    def _record_failure(self, action: e.RecordFailure) -> None:
        failures, retry = action
        # The state has moved on to the next attempt already when there is one.
        attempt = self.state.attempt - 1 if retry else self.state.attempt
        # The group's size: the next attempt's may differ.
        text = describe(failures, 1, self._group_spec.size)
        self._run.record_failure(attempt, failures, text, retry=retry)
        errors = {failure.rank: unpack_error(failure.error) for failure in failures}
        if self._callbacks_started:
            self._callbacks.failure(
                self._run_context,
                {rank: error for rank, error in errors.items() if isinstance(error, Exception)},
            )
        if retry:
            newest = self._run.newest_checkpoint()
            origin = f"from {newest.name}" if newest else "from the beginning"
            self._display.message(f"{text} Starting attempt {attempt + 1} {origin}.", "warning")

    def _record_attempt_stopped(self, action: e.RecordAttemptStopped) -> None:
        notice, size = action
        # The state has moved on already when there is a next attempt.
        attempt = self.state.attempt - (size is not None)
        self._run.record_attempt_stopped(attempt, notice, size)
        if size is None:
            return
        newest = self._run.newest_checkpoint()
        origin = f"from {newest.name}" if newest else "from the beginning"
        why = (
            "There is room for more workers"
            if notice.kind == "resize"
            else f"Rank {notice.rank} was preempted"
        )
        self._display.message(f"{why}: starting attempt {attempt + 1} with {size}, {origin}.")

    def _explain_hang(self, action: e.ExplainHang) -> None:
        self._display.message(hang_note(action, logs=self._only_logs), "warning")
        self._dump_stacks(action.missing)

    @property
    def _only_logs(self) -> str | None:
        """Where what workers print is, if the terminal does not show it."""
        return None if self._verbose else os.path.join(self._run.directory, LOG_DIRECTORY)

    def _dump_stacks(self, ranks: Iterable[int]) -> None:
        if self._group is not None:
            for rank in ranks:
                self._group.dump_stacks(rank)

    def _end(self, action: e.End) -> None:
        self._unwatch_capacity()
        for timer in self._timers:
            timer.cancel()
        if self._group is not None:
            self._group.close()
            self._group = None
        # Not waited for here: other runs may share this thread.
        job = self._last_job
        if job is None or job.done():
            self._conclude(action)
            return
        job.add_done_callback(lambda _: self._loop.call_soon(lambda: self._conclude(action)))
        where, warning_s, timeout_s = self._run.storage.uri, *self._end_waits

        def give_up(why: str) -> None:
            if not self.ended:
                self._abandon_storage()
                self._run.lose_storage(StorageError(f"{where} did not answer {why}."))
                self._conclude(action)

        self._give_up = give_up
        if warning_s is not None:
            text = unanswered_note(where, warning_s)

            def warn() -> None:
                self._storage_is_late = True
                self._warn_once("end", text)

            self._later(warning_s, warn)
        if timeout_s is not None:
            self._later(timeout_s, lambda: give_up(f"within {timeout_s:g} s"))

    def _conclude(self, action: e.End) -> None:
        if self.ended:
            return
        self.ended = True
        for timer in self._timers:
            timer.cancel()
        self._tell_others()
        failed = action.phase is e.Phase.FAILED
        if self._callbacks_started:
            status = "ERROR" if failed else "TERMINATED"
            stopped = action.phase in (e.Phase.INTERRUPTED, e.Phase.PREEMPTED)
            trial = replace(self._trial(status), stopped=stopped)
            self._callbacks.end(self._run.iteration, trial, failed)

    # ----------------------------------------------------------------------------------- helpers

    def _in_background(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """On the thread that storage may keep waiting, one after the other."""
        self._last_job = self._storage_thread.submit(call, *args)
        return self._last_job

    def _abandon_storage(self) -> None:
        self._storage_thread.abandon()
        self._storage_thread = JobThread("lockstep-storage")
        self._last_job = None
        self._sync_waits = False
        self._stalled = True

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        # Forgotten at the end: a timer that is still to fire would keep all of this in memory.
        now = time.monotonic()
        self._timers = [timer for timer in self._timers if timer.when > now]
        self._timers.append(self._loop.call_later(seconds, call))

    def _send(self, rank: int, message: Any) -> None:
        if self._group is not None:
            self._group.send(rank, message)

    def _trial(self, status: Any) -> TrialSnapshot:
        return TrialSnapshot(
            trial_id=self._run.trial_id,
            trainable_name=self._run.trainer_name,
            path=self._run.directory,
            experiment_name=self._run.experiment_name,
            experiment_tag=self._run.record["experiment_tag"],
            config=self._run.record["config"],
            last_result=self._last_result,
            status=status,
            checkpoint=self._newest,
            restored=self._run.restored,
        )

    def _should_stop(self, row: dict[str, Any]) -> bool:
        try:
            return reaches(self._stop, self._run.trial_id, row)
        except Exception as error:
            failed = StopConditionError(
                f"RunConfig(stop=…) raised {type(error).__name__}: {error}."
            )
            failed.__cause__ = error
            self._feed(e.Raised(0, pack_error(failed)))
            return False

    def _tell_differing(self, save: e.Save) -> None:
        names = differing_files(save.fingerprints)
        if names:
            self._warn_once(
                "differ",
                f"Several ranks saved different files named {', '.join(names[:3])}: the lowest "
                "rank's is kept; put the rank into the name to keep them all.",
            )

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._display.message(text, "warning")

    def _draw(self) -> None:
        interval = self._display.interval_s
        if interval is None or self.state.phase.ended:
            return
        self._display.update(self.status())
        self._display.refresh()
        self._later(interval, self._draw)

    def _preemption_deadline(self) -> float:
        return time.time() + settings.preemption_grace_seconds()

    def _watch_for_hangs(self) -> None:
        if self._hangs.interval_s is None or self.state.phase.ended:
            return
        now = time.monotonic()
        stalled = self._hangs.stalled(self.state, now)
        if stalled is not None:
            self._tell_stalled(stalled)
        silent = self._hangs.silent(self.state, now)
        if silent is not None:
            self._display.message(silence_note(*silent, logs=self._only_logs), "warning")
            self._dump_stacks(set(range(self.state.world_size)) - self.state.returned)
        stuck = self._hangs.stuck(self.state, now)
        if stuck is not None:
            self._feed(stuck)
        self._later(self._hangs.interval_s, self._watch_for_hangs)

    def _tell_stalled(self, stalled: Stalled) -> None:
        text = stalled_note(stalled, self._run.storage.uri)
        if not stalled.fatal:
            self._storage_is_late = True
            self._warn_once(f"stalled {stalled.name}", f"{stalled.name} {text}.")
            return
        self._abandon_storage()
        self._run.discard(stalled.name, later=True)
        error = StorageError(f"gave {stalled.name} up: it {text} (RunConfig(storage_timeout_s=…)).")
        self._feed(e.SaveFailed(stalled.name, pack_error(error)))

    def _sync_regularly(self) -> None:
        if not self.state.phase.ended:
            self._sync_soon()
            self._later(SYNC_INTERVAL_S, self._sync_regularly)

    def _sync_soon(self) -> None:
        # On slow storage one that waits for its turn is enough: it takes what there is then.
        if not self._sync_waits:
            self._sync_waits = True
            self._in_background(self._sync)

    def _sync(self) -> None:
        self._sync_waits = False
        try:
            self._run.sync()
        except LockstepError as error:
            self._warn_once(
                "sync", f"Could not copy the journal to storage, will try again: {error}"
            )


def reaches(stop: StopCondition | None, trial_id: str, row: dict[str, Any]) -> bool:
    """Whether a row meets a stop condition. A function of the user's own may raise."""
    if stop is None:
        return False
    if callable(stop):
        return bool(stop(trial_id, dict(row)))
    values = ((look_up(row, key), bound) for key, bound in stop.items())
    return any(isinstance(value, (int, float)) and value >= bound for value, bound in values)


def _outcome(action: Callable[[], None]) -> BaseException | None:
    try:
        action()
    except LockstepError as error:
        return error
    return None


_PERFORM: dict[type, Callable[[Controller, Any], None]] = {
    e.StartWorkers: Controller._start_workers,
    e.LaunchWorkers: Controller._launch_workers,
    e.OrderSave: Controller._order_save,
    e.Record: Controller._record,
    e.Commit: Controller._commit,
    e.Discard: Controller._discard,
    e.Answer: Controller._answer,
    e.CloseTrackers: Controller._let_go,
    e.ReleaseWorkers: Controller._release_workers,
    e.InterruptWorkers: Controller._interrupt_workers,
    e.KillWorkers: Controller._kill_workers,
    e.SetTimer: Controller._set_timer,
    e.ExplainHang: Controller._explain_hang,
    e.RecordFailure: Controller._record_failure,
    e.RecordAttemptStopped: Controller._record_attempt_stopped,
    e.End: Controller._end,
}
