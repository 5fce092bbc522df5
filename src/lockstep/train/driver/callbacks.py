"""Delivers the events of a run, or of all trials, to callbacks, each from a thread of its own.

The hooks themselves are in ``lockstep.callback``. One callback that raises, stalls or floods its
queue costs neither the run nor the other callbacks anything.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from lockstep.callback import Callback, RunContext, TrialSnapshot, UserCallback
from lockstep.trackers.tracker_callback import TrackerCallback
from lockstep.train.driver.callback_state import CallbackState

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint
    from lockstep.config import StopCondition

__all__ = ["CallbackDispatcher", "RunListener"]


SLOW_HOOK_S = 10.0
STATE_S = 1.0
"""How often a callback's state is kept while the trials of an experiment come and go."""
BATCH_S = 0.25
# A long batch would hold the interpreter lock for 5 ms and more at a time, and the driver's answers
# to the workers would wait for it: pause now and then, and do not leave all the writing to the end.
# Not too often: each pause has the driver's thread wait once more.
_PAUSE_EVERY = 64
_PAUSE_S = 1e-4


class RunListener(Protocol):
    """What a controller tells of its run, in this order; see ``CallbackDispatcher``."""

    def start(self, trial: TrialSnapshot, run_context: RunContext, restored: bool = False) -> None:
        """Its function is about to run."""

    def report(
        self,
        iteration: int,
        trial: TrialSnapshot,
        result: dict[str, Any],
        metrics_by_rank: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """A report is recorded and answered."""

    def checkpoint(self, iteration: int, trial: TrialSnapshot, checkpoint: Checkpoint) -> None:
        """A checkpoint is committed."""

    def failure(self, run_context: RunContext, errors: dict[int, Exception]) -> None:
        """An attempt failed."""

    def end(self, iteration: int, trial: TrialSnapshot, failed: bool) -> None:
        """It is over."""


class CallbackDispatcher:
    """The callbacks of one run, or with ``trials`` of an experiment's.

    ``start`` first and ``end`` for each trial, ``close`` last; an experiment calls ``begin`` before
    and ``finish`` after its trials. All calls from one thread, and all but ``close`` return at
    once. The values handed in must not be changed afterwards, except ``result``.

    Args:
        callbacks: ``Callback`` and ``UserCallback`` objects, mixed. An object listed twice is
            called once.
        on_problem: told in one sentence what went wrong; called from any thread.
        flush_s: how long ``close`` waits for those with no time of their own, in all.
        trials: every trial of the experiment, as it grows; None: there is only the one run. Read
            by the callbacks, in their threads.
        states: the directory where an experiment keeps what ``get_state`` gives; a run keeps it
            in its own.

    Raises:
        TypeError: an entry is not a callback.
        Exception: what a callback's ``check_before_run`` raises.
    """

    def __init__(
        self,
        callbacks: Sequence[object],
        on_problem: Callable[[str], None],
        flush_s: float,
        trials: Sequence[TrialSnapshot] | None = None,
        states: str | None = None,
    ) -> None:
        for callback in callbacks:
            _check(callback)
        unique = {id(callback): callback for callback in callbacks}
        self._on_problem = on_problem
        self._flush_s = flush_s
        self._alone = trials is None
        seen: Counter[type] = Counter()
        self._lanes = []
        for callback in unique.values():
            self._lanes.append(_Lane(callback, on_problem, trials, states, seen[type(callback)]))
            seen[type(callback)] += 1
        self._trial_lanes = [lane for lane in self._lanes if isinstance(lane.callback, Callback)]
        self._user_lanes = [lane for lane in self._lanes if isinstance(lane.callback, UserCallback)]
        self._contexts: dict[str, RunContext] = {}
        self._closed = False

    def begin(self, stop: StopCondition | None, num_samples: int) -> None:
        """``setup``; then ``set_state`` if it is an experiment that has kept something."""
        for lane in self._lanes:
            lane.put((_Lane.begun, stop, num_samples))
            lane.thread.start()

    def start(self, trial: TrialSnapshot, run_context: RunContext, restored: bool = False) -> None:
        """``on_trial_start``, ``on_trial_restore`` if it was; before them ``begin`` if alone."""
        if self._alone:
            self.begin(run_context.run_config.stop, 1)
        self._contexts[trial.trial_id] = run_context
        for lane in self._trial_lanes:
            lane.put((_Lane.started, trial, restored and trial.checkpoint is not None))

    def report(
        self,
        iteration: int,
        trial: TrialSnapshot,
        result: dict[str, Any],
        metrics_by_rank: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """``on_trial_result`` and ``after_report``."""
        context = self._contexts.get(trial.trial_id)
        values = (iteration, trial, dict(result), metrics_by_rank, checkpoint)
        event = (_Lane.reported, context, *values)
        for lane in self._lanes:
            lane.offer(event)

    def checkpoint(self, iteration: int, trial: TrialSnapshot, checkpoint: Checkpoint) -> None:
        """``on_trial_save``, then ``on_checkpoint``."""
        for lane in self._trial_lanes:
            lane.put((_Lane.saved, iteration, trial, checkpoint))

    def failure(self, run_context: RunContext, errors: dict[int, Exception]) -> None:
        """``after_exception``."""
        for lane in self._user_lanes:
            lane.put((_Lane.failed, run_context, errors))

    def end(self, iteration: int, trial: TrialSnapshot, failed: bool) -> None:
        """``on_trial_complete`` or ``on_trial_error``; then ``finish`` if alone."""
        self._contexts.pop(trial.trial_id, None)
        for lane in self._trial_lanes:
            lane.put((_Lane.ended, iteration, trial, failed))
        if self._alone:
            self.finish([trial])

    def finish(self, trials: Sequence[TrialSnapshot]) -> None:
        """``on_experiment_end``."""
        for lane in self._trial_lanes:
            lane.put((_Lane.finished, trials))

    def after_files(self, done: Callable[[], None]) -> None:
        """Call ``done``, in another thread, when those that use a run's directory are up to date.

        The run's own files hold everything so far then. Other callbacks have ``flush_s`` for that;
        one that needed longer is not waited for again before it has caught up.
        """
        users = [lane for lane in self._lanes if lane.uses_directory and lane.thread.is_alive()]
        waiting = [lane for lane in users if not lane.is_late]
        patience = _Patience(waiting, done)
        if not all(lane.is_file for lane in waiting):
            patience.limit(self._flush_s)
        for lane in users:
            lane.ask(patience.arrived)
        if not waiting:
            done()

    def close(self) -> None:
        """Waits up to ``flush_s`` for what is queued, names the callbacks that are not done.

        A callback that is not done gets no further events: its thread ends when the hook it is
        in returns.
        """
        if self._closed:
            return
        self._closed = True
        lanes = [lane for lane in self._lanes if lane.thread.ident is not None]
        now = time.monotonic()
        for lane in lanes:
            lane.finish()
        try:
            for lane in lanes:
                wait_s = self._flush_s if lane.end_timeout_s is None else lane.end_timeout_s
                lane.thread.join(max(0.0, now + wait_s - time.monotonic()))
        finally:
            late = [lane for lane in lanes if lane.thread.is_alive()]
            for lane in lanes:
                lane.abandon()
        own = [lane for lane in late if lane.end_timeout_s is not None]
        for lane in own:
            self._on_problem(
                f"{lane.name} was not finished {lane.end_timeout_s:g} s after the run ended, the "
                "time it was given, so its last events may be missing."
            )
        if late != own:
            names = ", ".join(lane.name for lane in late if lane not in own)
            self._on_problem(
                f"Not finished {self._flush_s:g} s after the run ended, so their last events may "
                f"be missing: {names}; set LOCKSTEP_CALLBACK_FLUSH_S to wait longer."
            )


class _Patience:
    """Calls ``done`` once every lane has arrived, or those that are not a run's files are late."""

    def __init__(self, lanes: Sequence[_Lane], done: Callable[[], None]) -> None:
        self._awaited = set(lanes)
        self._done = done
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def limit(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self) -> None:
        with self._lock:
            late = [lane for lane in self._awaited if not lane.is_file]
        for lane in late:
            lane.was_late = True
        self.arrived(*late)

    def arrived(self, *lanes: _Lane) -> None:
        with self._lock:
            was_waiting = bool(self._awaited)
            self._awaited.difference_update(lanes)
            if not was_waiting or self._awaited:
                return
        if self._timer is not None:
            self._timer.cancel()
        self._done()


def _check(callback: object) -> None:
    if isinstance(callback, TrackerCallback):
        callback.check_before_run()
    if isinstance(callback, (Callback, UserCallback)):
        return
    if isinstance(callback, type) and issubclass(callback, (Callback, UserCallback)):
        name = callback.__name__
        raise TypeError(f"RunConfig(callbacks=[{name}]): this is the class; give {name}(…).")
    raise TypeError(
        f"RunConfig(callbacks=[{callback!r}]): expected objects of lockstep.tune.Callback, "
        "lockstep.tune.logger.LoggerCallback or lockstep.train.UserCallback."
    )


def _own(trial: TrialSnapshot) -> TrialSnapshot:
    """A copy whose dicts are its own. dataclasses.replace takes three times as long."""
    own = object.__new__(TrialSnapshot)
    vars(own).update(vars(trial), config=dict(trial.config), last_result=dict(trial.last_result))
    return own


class _Lane:
    """One callback: its queue, its thread, and the timer that notices a hook that stalls."""

    def __init__(
        self,
        callback: object,
        on_problem: Callable[[str], None],
        trials: Sequence[TrialSnapshot] | None,
        states: str | None,
        number: int,
    ) -> None:
        self.callback = callback
        self.name = type(callback).__name__
        self._trials = trials
        self._states = states
        interval_s = 0.0 if trials is None else STATE_S
        self._state = None
        if isinstance(callback, Callback) and (trials is None or states is not None):
            self._state = CallbackState(callback, number, interval_s)
        self.thread = threading.Thread(
            target=self._run, name=f"lockstep-callback-{self.name}", daemon=True
        )
        self._queue: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self.put = self._queue.put
        # A user's callback gets the defaults, which are the class's own values.
        options = callback if isinstance(callback, TrackerCallback) else TrackerCallback
        self.end_timeout_s = options.end_timeout_s
        self._limit = options.max_waiting
        self.offer = self.put if self._limit is None else self._put_if_room
        self.batched = options.batched
        self._takes_rows = self.batched and not isinstance(callback, UserCallback)
        self.is_file = self.batched and self._limit is None
        self.uses_directory = options.uses_directory
        self.was_late = False
        self._asked = self._answered = 0
        self._on_problem = on_problem
        self._told: set[tuple[str, str]] = set()
        self._closing = threading.Event()
        self._abandoned = False
        self._running: tuple[str, float] | None = None
        self._timer: threading.Timer | None = None
        self._timer_lock = threading.Lock()

    def _put_if_room(self, event: tuple[Any, ...]) -> None:
        assert self._limit is not None
        if self._queue.qsize() < self._limit:
            self.put(event)
        else:
            what = f"is {self._limit} events behind and misses some; progress.csv has every report"
            trial_hook = isinstance(self.callback, Callback)
            self._tell("late", "on_trial_result" if trial_hook else "after_report", what)

    @property
    def is_late(self) -> bool:
        """Whether it is still behind with what it was once too late for."""
        if self._answered == self._asked:
            self.was_late = False
        return self.was_late

    def ask(self, arrived: Callable[[_Lane], None]) -> None:
        """Calls ``arrived`` when everything before is delivered."""
        self._asked += 1
        self.put((_Lane.passed, arrived))

    def finish(self) -> None:
        """Lets the thread end once the queue is drained."""
        self._closing.set()
        self.put(None)

    def abandon(self) -> None:
        """Lets the thread end after the hook it is in."""
        with self._timer_lock:
            self._abandoned = True
            timer = self._timer
        if timer is not None:
            timer.cancel()
            timer.join(1.0)

    def begun(self, stop: StopCondition | None, num_samples: int) -> None:
        if isinstance(self.callback, Callback):
            self._call("setup", stop=stop, num_samples=num_samples, total_num_samples=num_samples)
        if self._states is not None:
            self._with_state("set_state", self._states)

    def started(self, trial: TrialSnapshot, restored: bool) -> None:
        trial = _own(trial)
        trials = self._all(trial)
        if trial.restored and self._trials is None:
            self._with_state("set_state", trial.path)
        self._call("on_trial_start", iteration=0, trials=trials, trial=trial)
        if restored:
            self._call("on_trial_restore", iteration=0, trials=trials, trial=trial)

    def reported(
        self,
        run_context: RunContext | None,
        iteration: int,
        trial: TrialSnapshot,
        result: dict[str, Any],
        metrics_by_rank: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        if isinstance(self.callback, Callback):
            trial = _own(trial)
            self._call(
                "on_trial_result",
                iteration=iteration,
                trials=self._all(trial),
                trial=trial,
                result=dict(result),
            )
        if isinstance(self.callback, UserCallback):
            self._call(
                "after_report",
                run_context=run_context,
                metrics=[dict(metrics) for metrics in metrics_by_rank],
                checkpoint=checkpoint,
            )

    def saved(self, iteration: int, trial: TrialSnapshot, checkpoint: Checkpoint) -> None:
        trial = _own(trial)
        told: dict[str, Any] = {"iteration": iteration, "trials": self._all(trial), "trial": trial}
        self._call("on_trial_save", **told)
        self._call("on_checkpoint", **told, checkpoint=checkpoint)
        self._with_state("get_state", self._states or trial.path)

    def failed(self, run_context: RunContext, errors: dict[int, Exception]) -> None:
        self._call("after_exception", run_context=run_context, worker_exceptions=dict(errors))

    def ended(self, iteration: int, trial: TrialSnapshot, failed: bool) -> None:
        trial = _own(trial)
        hook = "on_trial_error" if failed else "on_trial_complete"
        self._call(hook, iteration=iteration, trials=self._all(trial), trial=trial)
        self._with_state("get_state", self._states or trial.path)

    def finished(self, trials: Sequence[TrialSnapshot]) -> None:
        self._call("on_experiment_end", trials=list(map(_own, trials)))
        if self._states is not None:
            self._with_state("get_state", self._states, last=True)

    def passed(self, arrived: Callable[[_Lane], None]) -> None:
        if self.batched:
            self._call("flush_batch")
        self._answered += 1
        arrived(self)

    def _all(self, trial: TrialSnapshot) -> Sequence[TrialSnapshot]:
        return [trial] if self._trials is None else self._trials

    def _run(self) -> None:
        event = self._next()
        while event is not None and not self._abandoned:
            if self.batched:
                self._closing.wait(BATCH_S)
            while event and not self._abandoned:
                if self._takes_rows and event[0] is _Lane.reported:
                    event = self._take_rows(event)
                else:
                    event[0](self, *event[1:])
                    event = self._waiting()
                self._keep_postponed()
            if self.batched:
                self._call("flush_batch")
            if event is not None:
                event = self._next()
        self._keep_postponed(last=True)

    def _take_rows(self, event: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        """Hand ``event`` and some of the reports behind it to a batched callback, then pause.

        It is our own: it changes nothing, so it needs no copies, and it only takes the row. Returns
        the event that comes then.
        """
        assert isinstance(self.callback, Callback)
        take = self.callback.on_trial_result
        for _ in range(_PAUSE_EVERY):
            if not event or event[0] is not _Lane.reported or self._abandoned:
                return event
            _, _, iteration, trial, result, _, _ = event
            self._enter("on_trial_result")
            try:
                take(iteration=iteration, trials=(), trial=trial, result=result)
            except BaseException as error:
                self._tell("raised", "on_trial_result", f"raised {_describe(error)}")
            finally:
                self._running = None
            event = self._waiting()
        self._call("flush_batch")
        time.sleep(_PAUSE_S)
        return event

    def _waiting(self) -> tuple[Any, ...] | None:
        """The next event if it is there already, else an empty one."""
        try:
            return self._queue.get_nowait()
        except Empty:
            return ()

    def _next(self) -> tuple[Any, ...] | None:
        while self._state is not None and self._state.postponed is not None:
            try:
                return self._queue.get(timeout=self._state.wait_s)
            except Empty:
                if self._abandoned:
                    return None
                self._keep_postponed()
        return self._queue.get()

    def _keep_postponed(self, last: bool = False) -> None:
        state = self._state
        if state is not None and state.postponed is not None and (last or not state.wait_s):
            self._with_state("get_state", state.postponed, last=last)

    def _with_state(self, hook: str, directory: str, **options: Any) -> None:
        """Keep the callback's state, or give it back."""
        if self._state is not None and self._state.is_used:
            act = self._state.keep if hook == "get_state" else self._state.give_back
            self._call(hook, act, directory=directory, **options)

    def _call(self, hook: str, action: Callable[..., None] | None = None, **arguments: Any) -> None:
        if self._abandoned:
            return
        self._enter(hook)
        try:
            (action or getattr(self.callback, hook))(**arguments)
        except BaseException as error:
            self._tell("raised", hook, f"raised {_describe(error)}")
        finally:
            self._running = None

    def _enter(self, hook: str) -> None:
        self._running = (hook, time.monotonic())
        if self._timer is None:
            self._watch(SLOW_HOOK_S)

    def _watch(self, seconds: float) -> None:
        # One timer serves every hook called while it runs: starting a thread for each call would
        # cost more than the call.
        with self._timer_lock:
            if self._timer is not None or self._abandoned:
                return
            self._timer = threading.Timer(seconds, self._look)
            self._timer.name = f"{self.thread.name}-timer"
            self._timer.daemon = True
            self._timer.start()

    def _look(self) -> None:
        # Cleared before looking: a hook that starts in between sees no timer and starts its own.
        self._timer = None
        running = self._running
        if running is None:
            return
        hook, since = running
        remaining = since + SLOW_HOOK_S - time.monotonic()
        if remaining > 0:
            self._watch(remaining)
        else:
            self._tell("stalled", hook, f"has been running for {SLOW_HOOK_S:g} s")

    def _tell(self, kind: str, hook: str, what: str) -> None:
        if (kind, hook) in self._told or self._abandoned:
            return
        self._told.add((kind, hook))
        # A console that cannot print must not end the delivery of events.
        with contextlib.suppress(Exception):
            self._on_problem(f"Callback {self.name}.{hook} {what}; training goes on.")


def _describe(error: BaseException) -> str:
    message = " ".join(str(error).split())
    if len(message) > 300:
        message = message[:299] + "…"
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    place = ""
    if traceback is not None:
        file = os.path.basename(traceback.tb_frame.f_code.co_filename)
        place = f" ({file}, line {traceback.tb_lineno})"
    return f"{type(error).__name__}{': ' if message else ''}{message}{place}"
