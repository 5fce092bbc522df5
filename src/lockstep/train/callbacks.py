"""Delivers a run's events to its callbacks, each from a thread of its own.

The hooks themselves are in ``lockstep.callback``. One callback that raises, stalls or floods its
queue costs neither the run nor the other callbacks anything.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from lockstep.callback import Callback, RunContext, Trial, UserCallback

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint

__all__ = ["CallbackDispatcher"]


def __getattr__(name: str) -> Any:
    # Scripts import it from here; it belongs to torch, whose package imports this module.
    if name == "TorchTensorboardProfilerCallback":
        from lockstep.train.torch.profiler import TorchTensorboardProfilerCallback

        return TorchTensorboardProfilerCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


SLOW_HOOK_S = 10.0
BATCH_S = 0.25
# A long batch would hold the interpreter lock for 5 ms and more at a time, and the driver's answers
# to the workers would wait for it: pause now and then, and do not leave all the writing to the end.
_PAUSE_EVERY = 16
_FLUSH_EVERY = 64
_PAUSE_S = 1e-4


class CallbackDispatcher:
    """The callbacks of one run.

    ``start`` first and once, ``close`` last; all calls from one thread, and all but ``close``
    return at once. The values handed in must not be changed afterwards, except ``result``.

    Args:
        callbacks: ``Callback`` and ``UserCallback`` objects, mixed. An object listed twice is
            called once.
        on_problem: told in one sentence what went wrong; called from any thread.
        flush_s: how long ``close`` waits in all.

    Raises:
        TypeError: an entry is not a callback.
    """

    def __init__(
        self, callbacks: Sequence[object], on_problem: Callable[[str], None], flush_s: float
    ) -> None:
        for callback in callbacks:
            _check(callback)
        unique = {id(callback): callback for callback in callbacks}
        self._on_problem = on_problem
        self._flush_s = flush_s
        self._lanes = [_Lane(callback, on_problem) for callback in unique.values()]
        self._trial_lanes = [lane for lane in self._lanes if isinstance(lane.callback, Callback)]
        self._user_lanes = [lane for lane in self._lanes if isinstance(lane.callback, UserCallback)]
        self._closed = False

    def start(self, trial: Trial, run_context: RunContext, restored: bool = False) -> None:
        """``setup``, ``on_trial_start`` and, for a restored trial, ``on_trial_restore``."""
        for lane in self._lanes:
            lane.run_context = run_context
            lane.put((_Lane.started, trial, restored and trial.checkpoint is not None))
            lane.thread.start()

    def report(
        self,
        iteration: int,
        trial: Trial,
        result: dict[str, Any],
        metrics_by_rank: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """``on_trial_result`` and ``after_report``."""
        event = (_Lane.reported, iteration, trial, dict(result), metrics_by_rank, checkpoint)
        for lane in self._lanes:
            lane.put(event)

    def checkpoint(self, iteration: int, trial: Trial, checkpoint: Checkpoint) -> None:
        """``on_checkpoint``."""
        for lane in self._trial_lanes:
            lane.put((_Lane.saved, iteration, trial, checkpoint))

    def failure(self, run_context: RunContext, errors: dict[int, Exception]) -> None:
        """``after_exception``."""
        for lane in self._user_lanes:
            lane.put((_Lane.failed, run_context, errors))

    def end(self, iteration: int, trial: Trial, failed: bool) -> None:
        """``on_trial_complete`` or ``on_trial_error``, then ``on_experiment_end``."""
        for lane in self._trial_lanes:
            lane.put((_Lane.ended, iteration, trial, failed))

    def close(self) -> None:
        """Waits up to ``flush_s`` for what is queued, names the callbacks that are not done.

        A callback that is not done gets no further events: its thread ends when the hook it is
        in returns.
        """
        if self._closed:
            return
        self._closed = True
        lanes = [lane for lane in self._lanes if lane.thread.ident is not None]
        deadline = time.monotonic() + self._flush_s
        for lane in lanes:
            lane.finish()
        try:
            for lane in lanes:
                lane.thread.join(max(0.0, deadline - time.monotonic()))
        finally:
            late = [lane for lane in lanes if lane.thread.is_alive()]
            for lane in lanes:
                lane.abandon()
        if late:
            names = ", ".join(lane.name for lane in late)
            self._on_problem(
                f"Not finished {self._flush_s:g} s after the run ended, so their last events may "
                f"be missing: {names}; set LOCKSTEP_CALLBACK_FLUSH_S to wait longer."
            )


def _check(callback: object) -> None:
    if isinstance(callback, (Callback, UserCallback)):
        return
    if isinstance(callback, type) and issubclass(callback, (Callback, UserCallback)):
        name = callback.__name__
        raise TypeError(f"RunConfig(callbacks=[{name}]): this is the class; give {name}(…).")
    raise TypeError(
        f"RunConfig(callbacks=[{callback!r}]): expected objects of lockstep.tune.Callback, "
        "lockstep.tune.logger.LoggerCallback or lockstep.train.UserCallback."
    )


def _own(trial: Trial) -> Trial:
    """A copy whose dicts are its own. dataclasses.replace takes three times as long."""
    own = object.__new__(Trial)
    vars(own).update(vars(trial), config=dict(trial.config), last_result=dict(trial.last_result))
    return own


class _Lane:
    """One callback: its queue, its thread, and the timer that notices a hook that stalls."""

    def __init__(self, callback: object, on_problem: Callable[[str], None]) -> None:
        self.callback = callback
        self.name = type(callback).__name__
        self.run_context: RunContext | None = None
        self.thread = threading.Thread(
            target=self._run, name=f"lockstep-callback-{self.name}", daemon=True
        )
        self._queue: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self.put = self._queue.put
        self._batched = isinstance(callback, Callback) and callback.batched
        self._on_problem = on_problem
        self._told: set[tuple[str, str]] = set()
        self._closing = threading.Event()
        self._abandoned = False
        self._running: tuple[str, float] | None = None
        self._timer: threading.Timer | None = None
        self._timer_lock = threading.Lock()

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

    def started(self, trial: Trial, restored: bool) -> None:
        if not isinstance(self.callback, Callback) or self.run_context is None:
            return
        trial = _own(trial)
        stop = self.run_context.run_config.stop
        self._call("setup", stop=stop, num_samples=1, total_num_samples=1)
        self._call("on_trial_start", iteration=0, trials=[trial], trial=trial)
        if restored:
            self._call("on_trial_restore", iteration=0, trials=[trial], trial=trial)

    def reported(
        self,
        iteration: int,
        trial: Trial,
        result: dict[str, Any],
        metrics_by_rank: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        if self._batched:
            # Our own: it changes nothing, so it needs no copies, and it only takes the row.
            self._call(
                "on_trial_result", iteration=iteration, trials=(), trial=trial, result=result
            )
        elif isinstance(self.callback, Callback):
            trial = _own(trial)
            self._call(
                "on_trial_result",
                iteration=iteration,
                trials=[trial],
                trial=trial,
                result=dict(result),
            )
        if isinstance(self.callback, UserCallback):
            self._call(
                "after_report",
                run_context=self.run_context,
                metrics=[dict(metrics) for metrics in metrics_by_rank],
                checkpoint=checkpoint,
            )

    def saved(self, iteration: int, trial: Trial, checkpoint: Checkpoint) -> None:
        trial = _own(trial)
        self._call(
            "on_checkpoint",
            iteration=iteration,
            trials=[trial],
            trial=trial,
            checkpoint=checkpoint,
        )

    def failed(self, run_context: RunContext, errors: dict[int, Exception]) -> None:
        self._call("after_exception", run_context=run_context, worker_exceptions=dict(errors))

    def ended(self, iteration: int, trial: Trial, failed: bool) -> None:
        trial = _own(trial)
        hook = "on_trial_error" if failed else "on_trial_complete"
        self._call(hook, iteration=iteration, trials=[trial], trial=trial)
        self._call("on_experiment_end", trials=[trial])

    def _run(self) -> None:
        event: tuple[Any, ...] | None = ()
        while event is not None and not self._abandoned:
            event = self._queue.get()
            if self._batched:
                self._closing.wait(BATCH_S)
            delivered = 0
            while event is not None and not self._abandoned:
                event[0](self, *event[1:])
                delivered += 1
                if self._batched and delivered % _PAUSE_EVERY == 0:
                    if delivered % _FLUSH_EVERY == 0:
                        self._call("flush_batch")
                    time.sleep(_PAUSE_S)
                try:
                    event = self._queue.get_nowait()
                except Empty:
                    break
            if self._batched:
                self._call("flush_batch")

    def _call(self, hook: str, **arguments: Any) -> None:
        if self._abandoned:
            return
        self._running = (hook, time.monotonic())
        if self._timer is None:
            self._watch(SLOW_HOOK_S)
        try:
            getattr(self.callback, hook)(**arguments)
        except BaseException as error:
            self._tell("raised", hook, f"raised {_describe(error)}")
        finally:
            self._running = None

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
