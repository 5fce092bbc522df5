"""A callback's own thread: its queue, its batches, and the state that it keeps."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from lockstep.callback import Callback, RunContext, TrialSnapshot, UserCallback
from lockstep.trackers.tracker_callback import TrackerCallback
from lockstep.train.driver.callback_state import CallbackState
from lockstep.train.driver.hook_calls import HookCalls

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint
    from lockstep.config import StopCondition

__all__ = ["CallbackLane", "LaneBarrier"]

STATE_S = 1.0
"""How often a callback's state is kept while the trials of an experiment come and go."""
BATCH_S = 0.25
"""How long a batched callback collects events before it writes. Files may lag by that much."""
LOG_ROWS_A_SECOND = 1000
"""How many rows of ``train.log()`` a tracker gets. Parsing more of them would slow the driver."""
# A long batch would hold the interpreter lock for 5 ms and more at a time, and the driver's answers
# to the workers would wait for it: pause now and then, and do not leave all the writing to the end.
# Not too often: each pause has the driver's thread wait once more.
_PAUSE_EVERY = 64
_PAUSE_S = 1e-4


def _own(trial: TrialSnapshot) -> TrialSnapshot:
    """A copy whose dicts are its own. dataclasses.replace takes three times as long."""
    own = object.__new__(TrialSnapshot)
    vars(own).update(vars(trial), config=dict(trial.config), last_result=dict(trial.last_result))
    return own


def _option(callback: object, name: str) -> Any:
    return getattr(callback, name, getattr(TrackerCallback, name))


class CallbackLane:
    """One callback's queue and thread.

    ``put`` and ``offer`` take ``(method of this class, *arguments)``; the thread calls the method.

    Args:
        callback: a ``Callback``, a ``UserCallback`` or both.
        on_problem: called with one sentence about what went wrong, from any thread.
        trials: every trial of an experiment, as it grows; None: there is only one run.
        states: where an experiment keeps what ``get_state`` returns; a run keeps it in its own.
        number: distinguishes callbacks of the same class.
    """

    def __init__(
        self,
        callback: object,
        on_problem: Callable[[str], None],
        trials: Sequence[TrialSnapshot] | None,
        states: str | None,
        number: int,
    ) -> None:
        self.callback = callback
        self.hooks = HookCalls(callback, on_problem)
        self.name = self.hooks.name
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
        # Bound once: it is called for each report.
        self.put = self._queue.put
        # A user's callback may set these, too (docs/tracking/your-own.md).
        self.end_timeout_s = _option(callback, "end_timeout_s")
        self._limit = _option(callback, "max_waiting")
        self.offer = self.put if self._limit is None else self._put_if_room
        self.batched = isinstance(callback, TrackerCallback) and callback.batched
        # The fast way below calls on_trial_result only; a UserCallback has other hooks to call.
        self._takes_rows = self.batched and not isinstance(callback, UserCallback)
        # Of lockstep's own trackers only the files (CSV, JSON) have no limit: they miss nothing.
        self.is_file = self.batched and self._limit is None
        self.uses_directory = _option(callback, "uses_directory")
        self.takes_logs = isinstance(callback, TrackerCallback) and callback.takes_logs
        self._log_second, self._log_rows = 0.0, 0
        self._steps = 0
        self._has_steps = isinstance(callback, Callback) and any(
            getattr(type(callback), hook) is not getattr(Callback, hook)
            for hook in ("on_step_begin", "on_step_end")
        )
        self.was_late = False
        # Two counters and no lock: each is written by one thread only.
        self._asked = self._answered = 0
        self._closing = threading.Event()

    def _put_if_room(self, event: tuple[Any, ...]) -> None:
        assert self._limit is not None
        if self._queue.qsize() < self._limit:
            self.put(event)
        else:
            what = f"is {self._limit} events behind and misses some; progress.csv has every report"
            trial_hook = isinstance(self.callback, Callback)
            self.hooks.report("late", "on_trial_result" if trial_hook else "after_report", what)

    def offer_logs(self, trial_id: str, rank: int, rows: list[str]) -> None:
        """Put rows of ``train.log()``, as many as there is room for in this second."""
        now = time.monotonic()
        if now - self._log_second >= 1.0:
            self._log_second, self._log_rows = now, 0
        room = LOG_ROWS_A_SECOND - self._log_rows
        if len(rows) > room:
            self.hooks.report(
                "late",
                "log_trial_rows",
                f"gets at most {LOG_ROWS_A_SECOND:,} rows of train.log() a second and misses the "
                "others; result.log_dataframe has every row",
            )
            rows = rows[:room]
        if rows:
            self._log_rows += len(rows)
            self.offer((CallbackLane.logged, trial_id, rank, rows))

    @property
    def is_late(self) -> bool:
        """Whether the callback was too slow once, and has not caught up since."""
        if self._answered == self._asked:
            self.was_late = False
        return self.was_late

    def ask(self, arrived: Callable[[CallbackLane], None]) -> None:
        """Call ``arrived`` when everything before is delivered."""
        self._asked += 1
        self.put((CallbackLane.passed, arrived))

    def finish(self) -> None:
        """Let the thread end once the queue is empty."""
        self._closing.set()
        self.put(None)

    def abandon(self) -> str | None:
        """Call ``abandon`` of a tracker that is not done; return its sentence for the user."""
        if not isinstance(self.callback, TrackerCallback):
            return None
        reports, ends = [], []
        # What the thread has not taken yet is taken here, so that the tracker can keep it.
        while event := self._waiting():
            if event[0] is CallbackLane.reported:
                reports.append(event[2:5])
            elif event[0] is CallbackLane.ended:
                ends.append(event[2:])
        self.put(None)  # the thread may still have to see the end
        try:
            return self.callback.abandon(reports, ends)
        except Exception as error:
            return f"{self.name} could not keep what it had to send: {error}"

    def begun(self, stop: StopCondition | None, num_samples: int) -> None:
        """Call ``setup``, and restore an experiment's state."""
        if isinstance(self.callback, Callback):
            self.hooks.call(
                "setup", stop=stop, num_samples=num_samples, total_num_samples=num_samples
            )
        if self._states is not None:
            self._with_state("set_state", self._states)

    def started(self, trial: TrialSnapshot, restored: bool) -> None:
        """Call ``on_trial_start``."""
        trial = _own(trial)
        trials = self._all(trial)
        if trial.restored and self._trials is None:
            self._with_state("set_state", trial.path)
        self.hooks.call("on_trial_start", iteration=0, trials=trials, trial=trial)
        if restored:
            self.hooks.call("on_trial_restore", iteration=0, trials=trials, trial=trial)

    def reported(
        self,
        run_context: RunContext | None,
        iteration: int,
        trial: TrialSnapshot,
        result: dict[str, Any],
        metrics_by_rank: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """Call ``on_trial_result`` and ``after_report``."""
        if isinstance(self.callback, Callback):
            trial = _own(trial)
            trials = self._all(trial)
            self._steps += 1
            if self._has_steps:
                self.hooks.call("on_step_begin", iteration=self._steps, trials=trials)
            self.hooks.call(
                "on_trial_result",
                iteration=iteration,
                trials=trials,
                trial=trial,
                result=dict(result),
            )
            if self._has_steps:
                self.hooks.call("on_step_end", iteration=self._steps, trials=trials)
        if isinstance(self.callback, UserCallback):
            self.hooks.call(
                "after_report",
                run_context=run_context,
                metrics=[dict(metrics) for metrics in metrics_by_rank],
                checkpoint=checkpoint,
            )

    def logged(self, trial_id: str, rank: int, rows: list[str]) -> None:
        """Call ``log_trial_rows`` with rows that the worker encoded."""
        parsed = [json.loads(row) for row in rows]
        self.hooks.call("log_trial_rows", trial_id=trial_id, rank=rank, rows=parsed)

    def saved(self, iteration: int, trial: TrialSnapshot, checkpoint: Checkpoint) -> None:
        """Call ``on_trial_save`` and ``on_checkpoint``."""
        trial = _own(trial)
        values: dict[str, Any] = {
            "iteration": iteration,
            "trials": self._all(trial),
            "trial": trial,
        }
        self.hooks.call("on_trial_save", **values)
        self.hooks.call("on_checkpoint", **values, checkpoint=checkpoint)
        self._with_state("get_state", self._states or trial.path)

    def failed(self, run_context: RunContext, errors: dict[int, Exception]) -> None:
        """Call ``after_exception``."""
        self.hooks.call("after_exception", run_context=run_context, worker_exceptions=dict(errors))

    def recovered(self, iteration: int, trial: TrialSnapshot) -> None:
        """Call ``on_trial_recover``."""
        trial = _own(trial)
        trials = self._all(trial)
        self.hooks.call("on_trial_recover", iteration=iteration, trials=trials, trial=trial)

    def ended(self, iteration: int, trial: TrialSnapshot, failed: bool) -> None:
        """Call ``on_trial_complete`` or ``on_trial_error``."""
        trial = _own(trial)
        hook = "on_trial_error" if failed else "on_trial_complete"
        self.hooks.call(hook, iteration=iteration, trials=self._all(trial), trial=trial)
        self._with_state("get_state", self._states or trial.path)

    def finished(self, trials: Sequence[TrialSnapshot]) -> None:
        """Call ``on_experiment_end``."""
        self.hooks.call("on_experiment_end", trials=list(map(_own, trials)))
        if self._states is not None:
            self._with_state("get_state", self._states, last=True)

    def passed(self, arrived: Callable[[CallbackLane], None]) -> None:
        """Notify ``arrived``: everything before is delivered."""
        if self.batched:
            self.hooks.call("flush_batch")
        self._answered += 1
        arrived(self)

    def _all(self, trial: TrialSnapshot) -> Sequence[TrialSnapshot]:
        return [trial] if self._trials is None else self._trials

    def _run(self) -> None:
        event = self._next()
        while event is not None and not self.hooks.abandoned:
            # One write for many rows: fewer system calls, and the lock stays with the driver.
            # At the end nothing more comes, so `_closing` cuts the wait short.
            if self.batched:
                self._closing.wait(BATCH_S)
            while event and not self.hooks.abandoned:
                if self._takes_rows and event[0] is CallbackLane.reported:
                    event = self._take_rows(event)
                else:
                    event[0](self, *event[1:])
                    event = self._waiting()
                self._keep_postponed()
            if self.batched:
                self.hooks.call("flush_batch")
            if event is not None:
                event = self._next()
        self._keep_postponed(last=True)

    def _take_rows(self, event: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        """Hand ``event`` and some of the reports behind it to a batched callback, then pause.

        Such a callback is lockstep's own and changes nothing, so it needs no copies. Returns the
        next event.
        """
        assert isinstance(self.callback, Callback)
        take, call = self.callback.on_trial_result, self.hooks.call
        for _ in range(_PAUSE_EVERY):
            if not event or event[0] is not CallbackLane.reported or self.hooks.abandoned:
                return event
            _, _, iteration, trial, result, _, _ = event
            call(
                "on_trial_result", take, iteration=iteration, trials=(), trial=trial, result=result
            )
            event = self._waiting()
        self.hooks.call("flush_batch")
        time.sleep(_PAUSE_S)
        return event

    def _waiting(self) -> tuple[Any, ...] | None:
        """The next event if there is one already, else an empty one."""
        try:
            return self._queue.get_nowait()
        except Empty:
            return ()

    def _next(self) -> tuple[Any, ...] | None:
        while self._state is not None and self._state.postponed is not None:
            try:
                return self._queue.get(timeout=self._state.wait_s)
            except Empty:
                if self.hooks.abandoned:
                    return None
                self._keep_postponed()
        return self._queue.get()

    def _keep_postponed(self, last: bool = False) -> None:
        state = self._state
        if state is not None and state.postponed is not None and (last or not state.wait_s):
            self._with_state("get_state", state.postponed, last=last)

    def _with_state(self, hook: str, directory: str, **options: Any) -> None:
        """Store the callback's state, or restore it."""
        if self._state is not None and self._state.is_used:
            act = self._state.keep if hook == "get_state" else self._state.give_back
            self.hooks.call(hook, act, directory=directory, **options)


class LaneBarrier:
    """Calls ``done`` once: when every lane has arrived, or the time of the late ones is up.

    A run's own files are never late: they are always waited for.
    """

    def __init__(self, lanes: Sequence[CallbackLane], done: Callable[[], None]) -> None:
        self._awaited = set(lanes)
        self._done = done
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def limit(self, seconds: float) -> None:
        """Wait no longer than this for other callbacks."""
        self._timer = threading.Timer(seconds, self._time_out)
        self._timer.daemon = True
        self._timer.start()

    def _time_out(self) -> None:
        # A lane may arrive while the timer fires, in its own thread.
        with self._lock:
            late = [lane for lane in self._awaited if not lane.is_file]
        for lane in late:
            lane.was_late = True
        self.arrived(*late)

    def arrived(self, *lanes: CallbackLane) -> None:
        """These lanes have delivered everything. May be called in any thread."""
        with self._lock:
            # Only the call that empties the set calls `done`; a late lane finds it empty.
            was_waiting = bool(self._awaited)
            self._awaited.difference_update(lanes)
            if not was_waiting or self._awaited:
                return
        if self._timer is not None:
            self._timer.cancel()
        self._done()
