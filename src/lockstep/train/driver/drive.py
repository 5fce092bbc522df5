"""Driving a run to its end in this thread: the loop, the signals, and what is said at the end."""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import FrameType, TracebackType
from typing import Any

from lockstep.config import RunConfig, StopCondition
from lockstep.console import Display
from lockstep.console.text import plural
from lockstep.engine.loop import EventLoop
from lockstep.errors import StorageError, TrainingInterrupted
from lockstep.jobs import JobThread
from lockstep.journal.records import RunRecords
from lockstep.train.driver.callbacks import CallbackDispatcher
from lockstep.train.driver.controller import Controller
from lockstep.train.driver.early_stopping import EarlyStopping
from lockstep.train.driver.events import Phase
from lockstep.train.driver.failure import describe, fails_again, first_cause
from lockstep.train.driver.notes import missing_stop_note, repeats_note, unanswered_note
from lockstep.train.driver.reloading import Reloading
from lockstep.train.driver.run_plan import RunPlan
from lockstep.train.driver.state import RunState
from lockstep.train.driver.stop_condition import reaches
from lockstep.train.driver.worker_logs import log_end
from lockstep.train.record.run import Run

__all__ = [
    "Impatience",
    "drive",
    "driver_signals",
    "failure_text",
    "install_quiet_excepthook",
    "resume_advice",
]

_INSIST_S = 1.4
"""How long after the second Ctrl-C the main thread is interrupted; the controller ends before."""
_INSIST_AGAIN_S = 0.15
"""How long until it is interrupted again: user code may have caught the first interrupt."""


def drive(
    plan: RunPlan,
    run: Run,
    callbacks: CallbackDispatcher,
    display: Display,
    reloading: Reloading | None = None,
    keep: Callable[[], None] = lambda: None,
) -> RunState:
    """Drive a run to its end in this thread, and release everything whatever happens.

    ``keep`` is called once, before any message of a worker is looked at: while the workers start,
    where that is possible.
    """
    stop = plan.run_config.stop
    checked = False
    if run.restored:
        _replay(stop, run)

    def decide(row: dict[str, Any]) -> bool:
        nonlocal checked
        if not checked:
            checked = True
            note = missing_stop_note(stop, row)
            if note is not None:
                display.message(note, "warning")
        return reaches(stop, run.trial_id, row)

    with Impatience() as impatience, impatience.cuts_short(), ExitStack() as cleanup:
        loop = EventLoop()
        # Undone in reverse: workers end first, then the display, then callbacks, the loop last.
        cleanup.callback(loop.close)
        cleanup.callback(callbacks.close)
        controller = Controller(
            plan,
            run,
            loop=loop,
            callbacks=callbacks,
            display=display,
            decide=None if stop is None else decide,
            reloading=reloading,
        )
        cleanup.callback(lambda: display.finish(controller.status()))
        cleanup.callback(controller.close)
        # In this process Ctrl-C must reach the function itself, so Python's handlers stay.
        signals: Any = nullcontext()
        if not plan.engine.in_this_process:
            signals = driver_signals(controller.interrupt, controller.preempt, impatience)
        # In this process the function runs at once; another storage may not answer for long.
        keeps_first = plan.engine.in_this_process or not run.storage.is_local
        if keeps_first:
            keep()
        with impatience.cuts_short(), signals:
            controller.start()
            if not keeps_first:
                keep()
            loop.run_until(lambda: controller.ended)
        if not controller.ended:
            controller.abort()
        try:
            with impatience.cuts_short():
                callbacks.close()
        except KeyboardInterrupt:
            if controller.state.phase is not Phase.INTERRUPTED:  # else the caller raises it
                raise
        finally:  # Ctrl-C may end the wait for a slow callback: the run's end is recorded anyway
            _finish(run, controller.state.phase, display, plan.run_config)
    return controller.state


def _replay(stop: StopCondition | None, run: Run) -> None:
    """Show the stop condition of a restored run what the run has reported before."""
    if isinstance(stop, EarlyStopping):
        records = RunRecords(run.storage)
        for report in records.reports():
            stop(run.trial_id, records.row(report))


def _finish(run: Run, phase: Phase, display: Display, config: RunConfig) -> None:
    """Record the run's end. Waits for remote storage as long as the config allows.

    Raises:
        StorageError: the records are not on storage; says where they are.
    """

    def finish() -> None:
        not_deleted = run.end(phase.value)
        if not_deleted is not None:
            display.message(f"Could not delete old checkpoints: {not_deleted}", "warning")
        run.finish_copy()

    if run.storage.is_local:
        finish()
        return
    where, warning_s, timeout_s = run.storage.uri, config.hang_warning_s, config.storage_timeout_s
    # In a thread, so that Ctrl-C and the timeout can end the wait for a store that hangs.
    job = JobThread("lockstep-storage").submit(finish)
    try:
        left_s = timeout_s
        if warning_s is not None and (timeout_s is None or warning_s < timeout_s):
            if not wait([job], timeout=warning_s).done:
                display.message(unanswered_note(where, warning_s), "warning")
            left_s = None if timeout_s is None else timeout_s - warning_s
        job.result(left_s)
        return
    except FutureTimeout:
        how_long = f"within {timeout_s:g} s"
    except KeyboardInterrupt:
        how_long = "until Ctrl-C"
    run.abandon_storage(StorageError(f"{where} did not answer {how_long}."))
    run.finish_copy()


class Impatience:
    """The second Ctrl-C is a promise: whatever this thread waits for, it ends in two seconds.

    A moment after it, KeyboardInterrupt is raised in the main thread, and again every moment until
    the context is left: in a call to storage that does not return, in a wait for a callback.

    Attributes:
        insists: KeyboardInterrupt is being raised.
    """

    def __init__(self) -> None:
        self.insists = False
        self._presses = 0
        self._left = threading.Lock()
        # Held while the context is entered. Releasing it wakes `_insist` at once, and a lock can be
        # released by another thread than the one that acquired it.
        self._left.acquire()
        # No signal may be sent after __exit__: it would hit whatever the main thread does then.
        self._signalling = threading.Lock()

    def __enter__(self) -> Impatience:
        return self

    def __exit__(self, *error: object) -> None:
        # An interrupt may arrive in this very block: try again until it was completed once.
        while True:
            with suppress(KeyboardInterrupt), self._signalling:
                if self._left.locked():
                    self._left.release()
                break
        if self.insists:
            with suppress(KeyboardInterrupt):
                time.sleep(0.01)  # the last signal may be on its way

    def press(self) -> None:
        """Ctrl-C. Called by a signal handler in the main thread."""
        self._presses += 1
        if self._presses == 2:
            # Not threading.Thread: the handler may have interrupted something that holds its lock.
            _thread.start_new_thread(self._insist, (threading.get_ident(),))

    @contextmanager
    def cuts_short(self) -> Iterator[None]:
        """Leave this context early when the user insists."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.insists:
                raise

    def _insist(self, thread: int) -> None:
        wait_s = _INSIST_S
        while not self._left.acquire(timeout=wait_s):
            with self._signalling:
                if self._left.locked():
                    self.insists = True
                    # A signal, because only that wakes a system call that blocks.
                    signal.pthread_kill(thread, signal.SIGINT)
            wait_s = _INSIST_AGAIN_S


@contextmanager
def driver_signals(
    interrupt: Callable[[], None], preempt: Callable[[], None], impatience: Impatience
) -> Iterator[None]:
    """While runs are driven, Ctrl-C and SIGTERM call these instead of ending this process."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python allows only the main thread to install handlers
        return
    reactions = {signal.SIGINT: interrupt, signal.SIGTERM: preempt}

    def react(signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            if impatience.insists:
                raise KeyboardInterrupt
            impatience.press()
        reactions[signal.Signals(signum)]()

    before = {
        name: signal.signal(name, react)
        for name in reactions
        if _is_replaceable(signal.getsignal(name))
    }
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _is_replaceable(handler: Any) -> bool:
    """What is ignored (nohup) stays ignored, and a handler of the user's own stays theirs."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    # ray.init() installs one that ends the process: no rank could save.
    return str(getattr(handler, "__module__", "")).startswith("ray.")


def failure_text(run: Run, state: RunState) -> str:
    """Why a run failed: one sentence, and the last log lines of a rank whose process died.

    Of a crash also its stack.
    """
    text = describe(state.failures, state.attempt, state.world_size)
    allowed = state.policy.decide(state.failed_attempts) == "retry"
    if allowed and fails_again(first_cause(state.failures)):
        text = f"{text} Another attempt would fail in the same way, so none is made."
    if state.repeats > 1:
        text = f"{text} {repeats_note(state.repeats)}"
    text = f"{text} The run is in {run.storage.uri}."
    cause = first_cause(state.failures)
    if not cause.died:
        return text
    tail, stack = log_end(run.directory, cause.rank)
    for what, lines in (
        (f"The last lines of rank {cause.rank}'s log", tail),
        (f"Where rank {cause.rank} crashed", stack),
    ):
        if lines:
            text += f"\n{what}:\n" + "\n".join(f"    {line}" for line in lines)
    return text


def resume_advice(what: str, run: Run, call: str) -> str:
    """What is kept of a run that was stopped, and the ``call`` that resumes it."""
    kept = f"{plural(run.rows, 'report')} and {plural(len(run.checkpoints), 'checkpoint')} are kept"
    return f"{what}: {kept} in {run.storage.uri}. To resume: {call}"


def install_quiet_excepthook() -> None:
    """An interrupted script ends with the one sentence, not with a traceback around it."""
    before = sys.excepthook
    if getattr(before, "quiet", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, TrainingInterrupted):
            print(f"\n{error}", file=sys.stderr)
            # At a prompt, or before one (python -i), the session continues.
            if not (hasattr(sys, "ps1") or sys.flags.inspect):
                _die_of_ctrl_c()
        else:
            before(kind, error, trace)

    hook.quiet = True  # type: ignore[attr-defined]  # a mark on a function
    sys.excepthook = hook


def _die_of_ctrl_c() -> None:
    """End as Python does for a KeyboardInterrupt (not for a subclass): killed by SIGINT.

    A shell loop around the script stops then, too.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
