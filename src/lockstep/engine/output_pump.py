"""The thread that reads the output of the local engine's workers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import traceback
from collections.abc import Callable
from typing import TypeVar

from lockstep.engine.base import OutputSink
from lockstep.engine.wakeup import Wakeup

__all__ = ["OutputPump"]

_T = TypeVar("_T")


class OutputPump:
    """Reads the output of workers, so that a printing worker never waits for a busy driver."""

    def __init__(self, pipes: list[int], sink: OutputSink) -> None:
        self._ranks = {fd: rank for rank, fd in enumerate(pipes)}
        self._sink = sink
        self._failed = False
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name="lockstep-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read the rest of the pipes, then end the thread. Idempotent."""
        self._wakeup.wake()
        self._thread.join()
        self._wakeup.close()

    def _run(self) -> None:
        poller = select.poll()
        for fd in (*self._ranks, self._wakeup.fileno()):
            poller.register(fd, select.POLLIN)
        for fd in self._ranks:
            os.set_blocking(fd, False)  # for the last reads: a pipe may be empty and still open
        wait = self._tick()
        closing = False
        while self._ranks and not closing:
            for fd, _ in poller.poll(None if wait is None else max(1, int(wait * 1000))):
                if fd not in self._ranks:
                    closing = True
                else:
                    self._read(fd, poller)
            wait = self._tick()
        for fd in list(self._ranks):
            # A process that outlived its worker may hold the pipe open and continue to write, so
            # the end of the file may never come. What was printed until now fits in the pipe.
            left = _pipe_capacity(fd)
            while left > 0 and (count := self._read(fd, poller)):
                left -= count
        for fd in list(self._ranks):
            self._forget(fd, poller)
        self._to_sink(self._sink.close)

    def _read(self, fd: int, poller: select.poll) -> int:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return 0
        if data:
            self._to_sink(lambda: self._sink.write(self._ranks[fd], data))
        else:
            self._forget(fd, poller)
        return len(data)

    def _tick(self) -> float | None:
        return self._to_sink(self._sink.tick)

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

    def _forget(self, fd: int, poller: select.poll) -> None:
        poller.unregister(fd)
        os.close(fd)
        del self._ranks[fd]


def _pipe_capacity(fd: int) -> int:
    if hasattr(fcntl, "F_GETPIPE_SZ"):
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    return 1 << 16
