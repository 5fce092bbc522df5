"""How much CPU time users' functions take in the threads that read.

Python code in such a thread holds the interpreter's lock, so the user's own thread stands still at
that time. No other measure shows this: neither thread waits for the other's results.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["Meter", "Stood", "metered"]

T = TypeVar("T")
R = TypeVar("R")

_SHORT_S = 2e-4
"""In less time than this nothing is looked at: that would take a good part of it."""

_active: ContextVar[Meter | None] = ContextVar("lockstep_data_meter", default=None)


def metered(function: Callable[[T], R]) -> Callable[[T], R]:
    """The function, for another thread, counted by the meter that counts this thread."""
    meter = _active.get()
    if meter is None:
        return function

    def counted(value: T) -> R:
        with meter.running():
            return function(value)

    return counted


class Meter:
    """Counts the CPU seconds of users' functions, also of those that still run. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spent = 0.0
        self._running: dict[int, tuple[int | None, float]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count what the calling thread uses inside."""
        thread, start = threading.get_ident(), time.thread_time()
        # Lets another thread read this thread's CPU time while the function still runs.
        clock = time.pthread_getcpuclockid(thread) if sys.platform == "linux" else None
        with self._lock:
            self._running[thread] = (clock, start)
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)
            with self._lock:
                del self._running[thread]
                self._spent += time.thread_time() - start

    def seconds(self) -> float:
        """The total up to now."""
        with self._lock:
            total = self._spent
            for clock, start in self._running.values():
                if clock is not None:
                    total += time.clock_gettime(clock) - start
            return total


class Stood:
    """Estimates for how long the calling thread stood still because a metered function ran.

    That is at most the time it had no CPU, at most the function's CPU time, and at most as many
    switch intervals of the interpreter as it went to sleep: who waits for the interpreter's lock
    wakes up that often, unlike one who waits for a file or for other workers.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.begin()

    def begin(self) -> None:
        """The time to look at begins."""
        self._wall = time.perf_counter()
        self._cpu, self._sleeps = _thread_usage()
        self._functions = self._meter.seconds()

    def seconds(self) -> float:
        """For how long it stood still since ``begin``."""
        if time.perf_counter() - self._wall < _SHORT_S:
            return 0.0
        functions = self._meter.seconds() - self._functions
        if functions <= 0:
            return 0.0
        cpu, sleeps = _thread_usage()
        idle = time.perf_counter() - self._wall - (cpu - self._cpu)
        most = (sleeps - self._sleeps) * sys.getswitchinterval()
        return max(0.0, min(idle, functions, most))


def _thread_usage() -> tuple[float, float]:
    """The calling thread's CPU seconds, and how often it has stopped running."""
    import resource

    if not hasattr(resource, "RUSAGE_THREAD"):
        return time.thread_time(), float("inf")
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime + usage.ru_stime, usage.ru_nvcsw + usage.ru_nivcsw
