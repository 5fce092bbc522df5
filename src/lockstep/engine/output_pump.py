"""The thread that deals with the output of workers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from lockstep.engine.base import OutputSink
from lockstep.engine.loop import EventLoop
from lockstep.engine.wakeup import Wakeup

__all__ = ["OutputPump"]

_T = TypeVar("_T")


class OutputPump:
    """Reads the output of one group, so that a printing worker never waits for a busy driver.

    All groups of an event loop share one thread. A thread of its own would cost a short trial more
    than the rest of its start: on a busy machine a new thread does not run at once, and whoever
    starts it waits for that.

    Args:
        pipes: what each rank prints comes out of the rank's pipe; the pump closes the pipes.
        sink: gets it, in the thread.
        loop: the group's event loop, whose thread calls.
    """

    def __init__(self, pipes: list[int], sink: OutputSink, loop: EventLoop) -> None:
        self._ranks = {fd: rank for rank, fd in enumerate(pipes)}
        self._sink = sink
        self._failed = False
        self._finished = threading.Event()
        self.due: float | None = None
        """When the sink wants to be called, if nothing comes before."""
        self._reader = _Reader.of(loop)
        # In the thread, which alone changes what it polls: no lock is needed.
        self._reader.call(lambda: self._reader.add(self, pipes))

    def close(self) -> None:
        """Read the rest of the pipes, and close the sink. Idempotent."""
        if not self._finished.is_set():
            self._reader.call(self.finish)
            # A thread that has died would never set the event.
            while not self._finished.wait(1.0) and self._reader.runs:
                pass

    def feed(self, rank: int, data: bytes, done: Callable[[], None]) -> None:
        """Output that came from elsewhere; ``done`` is called, in the thread, when it is written.

        Never waits.
        """
        self._reader.call(lambda: self._feed(rank, data, done))

    # ------------------------------------------------------------------------- in the thread

    def _feed(self, rank: int, data: bytes, done: Callable[[], None]) -> None:
        if not self._finished.is_set():
            self._to_sink(lambda: self._sink.write(rank, data))
            self.tick()
        done()

    def read(self, fd: int) -> int:
        """Pass on what a pipe has now; returns how many bytes."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return 0
        if data:
            self._to_sink(lambda: self._sink.write(self._ranks[fd], data))
        else:
            self._forget(fd)
            if not self._ranks:
                self.finish()
        return len(data)

    def tick(self) -> None:
        """Let the sink show what is due."""
        wait = self._to_sink(self._sink.tick)
        self.due = None if wait is None else time.monotonic() + wait

    def finish(self) -> None:
        """Read the rest of the pipes, and close the sink."""
        if self._finished.is_set():
            return
        for fd in list(self._ranks):
            # A process that outlived its worker may hold the pipe open and continue to write, so
            # the end of the file may never come. What was printed until now fits in the pipe.
            left = _pipe_capacity(fd)
            while left > 0 and fd in self._ranks and (count := self.read(fd)):
                left -= count
        for fd in list(self._ranks):
            self._forget(fd)
        if not self._finished.is_set():
            self._to_sink(self._sink.close)
            self._reader.remove(self)
            self._finished.set()

    def _to_sink(self, call: Callable[[], _T]) -> _T | None:
        """Call the sink. If the sink raises, reading continues, or workers would block."""
        try:
            return call()
        except Exception:
            if not self._failed:
                self._failed = True
                with contextlib.suppress(Exception):
                    traceback.print_exc()
            return None

    def _forget(self, fd: int) -> None:
        self._reader.forget(fd)
        os.close(fd)
        del self._ranks[fd]


class _Reader:
    """The thread of an event loop's pumps. It ends when the loop is closed."""

    def __init__(self, loop: EventLoop) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._wakeup = Wakeup()
        self._poller = select.poll()
        self._pumps: dict[OutputPump, None] = {}
        self._pump_of: dict[int, OutputPump] = {}
        self.runs = True
        self._thread = threading.Thread(target=self._run, name="lockstep-output", daemon=True)
        self._thread.start()
        loop.at_close(self._end)

    @classmethod
    def of(cls, loop: EventLoop) -> _Reader:
        """The loop's own one."""
        reader = _readers.get(loop)
        if reader is None or not reader.runs:
            reader = _readers[loop] = cls(loop)
        return reader

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the thread."""
        self._calls.append(function)
        self._wakeup.wake()

    def _end(self) -> None:
        self.call(self._stop)
        self._thread.join()
        self._wakeup.close()

    # ------------------------------------------------------------------------- in the thread

    def add(self, pump: OutputPump, pipes: list[int]) -> None:
        """Read these pipes for a pump."""
        self._pumps[pump] = None
        for fd in pipes:
            os.set_blocking(fd, False)  # for the last reads: a pipe may be empty and still open
            self._pump_of[fd] = pump
            self._poller.register(fd, select.POLLIN)
        pump.tick()

    def forget(self, fd: int) -> None:
        """A pipe is about to be closed."""
        # Before the close: another file may get the number at once.
        self._poller.unregister(fd)
        del self._pump_of[fd]

    def remove(self, pump: OutputPump) -> None:
        """A pump has no pipes any more."""
        self._pumps.pop(pump, None)

    def _stop(self) -> None:
        for pump in list(self._pumps):
            pump.finish()
        self.runs = False

    def _run(self) -> None:
        wakeup = self._wakeup.fileno()
        self._poller.register(wakeup, select.POLLIN)
        try:
            while self.runs:
                has_read: set[OutputPump] = set()
                for fd, _ in self._poller.poll(self._timeout_ms()):
                    if fd == wakeup:
                        self._wakeup.drain()
                        while self._calls:
                            self._calls.popleft()()
                    # A call above may have closed the file.
                    elif (pump := self._pump_of.get(fd)) is not None:
                        pump.read(fd)
                        has_read.add(pump)
                now = time.monotonic()
                for pump in list(self._pumps):
                    if pump in has_read or (pump.due is not None and pump.due <= now):
                        pump.tick()
        finally:
            self.runs = False

    def _timeout_ms(self) -> int | None:
        due = [pump.due for pump in self._pumps if pump.due is not None]
        return max(1, int((min(due) - time.monotonic()) * 1000)) if due else None


_readers: weakref.WeakKeyDictionary[EventLoop, _Reader] = weakref.WeakKeyDictionary()


def _pipe_capacity(fd: int) -> int:
    if hasattr(fcntl, "F_GETPIPE_SZ"):
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    return 1 << 16
