"""The driver's event loop: file descriptors, timers and calls from other threads.

A few dozen lines instead of asyncio, because a notebook already runs an asyncio loop on this
thread, and because a report's round trip is as short as this loop is.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from lockstep.engine.wakeup import Wakeup

__all__ = ["EventLoop", "SpinThenBlock", "Timer"]


SHORT_WAIT_S = 2e-4
"""Falling asleep and being woken takes about that long."""
SHORT_WAITS = 16
"""After this many waits shorter than ``SHORT_WAIT_S``, the next wait spins before it sleeps."""

# Lets the awaited process run where there are fewer cores than processes.
_yield_cpu: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class SpinThenBlock:
    """Waits for files as ``poll`` does. After several short waits it spins before it blocks.

    When one report follows the other, to fall asleep and to be woken takes longer than the wait.
    """

    __slots__ = ("_poll", "_short_waits")

    def __init__(self, poll: Callable[..., list[tuple[int, int]]]) -> None:
        self._poll = poll
        self._short_waits = 0

    def __call__(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """The files that are ready; empty after ``timeout``."""
        if self._short_waits >= SHORT_WAITS and timeout != 0:
            patience = time.perf_counter() + SHORT_WAIT_S
            while time.perf_counter() < patience:
                found = self._poll(0)
                if found:
                    return found
                _yield_cpu()
            self._short_waits = 0  # nothing came: do not burn a CPU on the next waits
        begun = time.perf_counter()
        found = self._poll(timeout)
        self._short_waits = (
            self._short_waits + 1 if time.perf_counter() - begun < SHORT_WAIT_S else 0
        )
        return found


class Timer:
    """A pending call; ``cancel()`` makes it never happen."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None] | None) -> None:
        self.when = when
        self.callback = callback

    def cancel(self) -> None:
        """Forget the call."""
        self.callback = None


class EventLoop:
    """Runs callbacks on the thread that calls ``run_until``.

    Only ``call_soon`` is thread-safe, and safe in signal handlers.
    """

    def __init__(self) -> None:
        # Used directly: the wrapper in ``selectors`` would cost a report a tenth of its time.
        self._poller: Any = select.epoll() if hasattr(select, "epoll") else select.poll()
        self._timeout_unit = 1 if hasattr(select, "epoll") else 1000
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._soon: deque[Callable[[], None]] = deque()
        self._at_close: list[Callable[[], None]] = []
        self._watched: dict[int, tuple[Callable[[], None], Callable[[], None] | None]] = {}
        self._wait = SpinThenBlock(self._poller.poll)
        self._wakeup = Wakeup()
        self._wake = self._wakeup.wake
        self.watch(self._wakeup.fileno(), self._wakeup.drain)

    def watch(
        self, fd: int, on_read: Callable[[], None], on_write: Callable[[], None] | None = None
    ) -> None:
        """Call ``on_read`` (``on_write``) whenever ``fd`` is readable (writable)."""
        events = select.POLLIN | (select.POLLOUT if on_write else 0)
        if fd in self._watched:
            self._poller.modify(fd, events)
        else:
            self._poller.register(fd, events)
        self._watched[fd] = (on_read, on_write)

    def unwatch(self, fd: int) -> None:
        """Stop watching ``fd``; no error if it is not watched."""
        if self._watched.pop(fd, None) is not None:
            with contextlib.suppress(OSError):  # closed already
                self._poller.unregister(fd)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the loop's thread. May be called by any thread or signal handler.

        After ``close`` it does nothing.
        """
        self._soon.append(callback)
        # After the append: a loop that wakes up finds the callback.
        self._wake()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` after ``seconds``."""
        timer = Timer(time.monotonic() + seconds, callback)
        # The number orders timers of the same time, as timers themselves cannot be compared.
        heapq.heappush(self._timers, (timer.when, next(self._order), timer))
        return timer

    def run_until(self, done: Callable[[], bool]) -> None:
        """Handle events until ``done()``."""
        while not done():
            self.run_once()

    def run_once(self) -> None:
        """Wait for something to happen and handle it."""
        found = self._wait(self._timeout())
        # Looked up before any callback runs, to notice below what a callback has changed.
        ready = [(fd, mask, self._watched[fd]) for fd, mask in found if fd in self._watched]
        for fd, mask, callbacks in ready:
            on_read, on_write = callbacks
            # An earlier callback may have closed this file and opened another with its number.
            # A hang-up or an error sets neither bit; reading shows it.
            if mask != select.POLLOUT and self._watched.get(fd) is callbacks:
                on_read()
            if (
                on_write is not None
                and mask != select.POLLIN
                and self._watched.get(fd) is callbacks
            ):
                on_write()
        # Calls that these calls add run next time, so that files and timers get their turn.
        for _ in range(len(self._soon)):
            if self._soon:
                self._soon.popleft()()
        if self._timers:
            self._run_due_timers()

    def at_close(self, call: Callable[[], None]) -> None:
        """Call this when the loop is closed."""
        self._at_close.append(call)

    def close(self) -> None:
        """Release the poller and the wake-up pipe. Idempotent."""
        while self._at_close:
            self._at_close.pop()()
        if hasattr(self._poller, "close"):
            self._poller.close()
        self._wakeup.close()

    def _timeout(self) -> float | None:
        if self._soon:
            return 0
        # A cancelled timer stays in the heap until it is first: finding it there would be slow.
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic()) * self._timeout_unit

    def _run_due_timers(self) -> None:
        # Read once: a timer that sets itself again with no delay must not keep the loop here.
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                timer.callback()
