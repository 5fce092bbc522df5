"""Calls one callback's hooks: what raises or stalls is reported once, and never reaches the run."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from lockstep.hooks import call_hook
from lockstep.trackers.tracker_callback import TrackerProblem

__all__ = ["HookCalls"]

SLOW_HOOK_S = 10.0
"""How long a hook may run before the user is warned."""


class HookCalls:
    """One callback's hooks, called from its lane's thread; ``abandon`` comes from another.

    Args:
        callback: whose hooks.
        on_problem: called with one sentence about what went wrong, from any thread.
    """

    def __init__(self, callback: object, on_problem: Callable[[str], None]) -> None:
        self.callback = callback
        self.name = type(callback).__name__
        self._on_problem = on_problem
        self.abandoned = False
        """No further hook is called."""
        self._reported: set[tuple[str, str]] = set()
        self._running: tuple[str, float] | None = None
        self._timer: threading.Timer | None = None
        self._timer_lock = threading.Lock()

    def call(self, hook: str, action: Callable[..., None] | None = None, **arguments: Any) -> None:
        """Call a hook, or ``action`` in its name."""
        if self.abandoned:
            return
        self._running = (hook, time.monotonic())
        if self._timer is None:
            self._watch(SLOW_HOOK_S)
        try:
            if action is None:
                call_hook(getattr(self.callback, hook), **arguments)
            else:  # lockstep's own, which takes what it gets: at every report
                action(**arguments)
        except TrackerProblem as problem:
            self._show(str(problem))
        # Also SystemExit: a callback's thread must not end while events are queued.
        except BaseException as error:
            self.report("raised", hook, f"raised {_describe(error)}")
        finally:
            self._running = None

    def report(self, kind: str, hook: str, problem: str) -> None:
        """Report a problem with a hook, the first time that there is one of this kind."""
        if (kind, hook) in self._reported or self.abandoned:
            return
        self._reported.add((kind, hook))
        self._show(f"Callback {self.name}.{hook} {problem}; training continues.")

    def _show(self, text: str) -> None:
        # A console that cannot print must not end the delivery of events.
        if not self.abandoned:
            with contextlib.suppress(Exception):
                self._on_problem(text)

    def abandon(self) -> None:
        """Call no further hook."""
        with self._timer_lock:
            self.abandoned = True
            timer = self._timer
        if timer is not None:
            timer.cancel()
            # It may be showing a message; afterwards nothing of this callback is shown.
            timer.join(1.0)

    def _watch(self, seconds: float) -> None:
        # One timer serves every hook called while it runs: starting a thread for each call would
        # cost more than the call.
        with self._timer_lock:
            if self._timer is not None or self.abandoned:
                return
            self._timer = threading.Timer(seconds, self._look)
            self._timer.name = f"lockstep-callback-{self.name}-timer"
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
            self.report("stalled", hook, f"has been running for {SLOW_HOOK_S:g} s")


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
