"""The thread that reads what the local engine's workers print."""

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

__all__ = ["OutputPump"]

_T = TypeVar("_T")


class OutputPump:
    """Reads what workers print, so that a worker never waits on a busy driver."""

    def __init__(self, pipes: list[int], sink: OutputSink) -> None:
        self._ranks = {fd: rank for rank, fd in enumerate(pipes)}
        self._sink = sink
        self._closed = False
        self._failed = False
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="lockstep-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read what is left in the pipes, then end the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        os.write(self._wake_write, b"\0")
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        poller = select.poll()
        for fd in (*self._ranks, self._wake_read):
            poller.register(fd, select.POLLIN)
        for fd in self._ranks:
            os.set_blocking(fd, False)
        wait = self._tick()
        closing = False
        while self._ranks and not closing:
            for fd, _ in poller.poll(None if wait is None else max(1, int(wait * 1000))):
                if fd == self._wake_read:
                    closing = True
                else:
                    self._read(fd, poller)
            wait = self._tick()
        for fd in list(self._ranks):
            # A process that outlived its worker may hold the pipe open and continue writing: take
            # what was there now, which is no more than a pipe holds.
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
        """Call the sink. If it raises, reading continues: workers would block on full pipes."""
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
