"""Waking a thread that waits in ``poll``, from another thread or from a signal handler."""

from __future__ import annotations

import contextlib
import os

__all__ = ["Wakeup"]


class Wakeup:
    """A pipe to itself: ``wake`` makes it readable for the waiting thread, ``drain`` ends that.

    ``wake`` never blocks, takes no lock and may be called by anyone, also after ``close``.
    """

    __slots__ = ("_read_fd", "_write_fd")

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def fileno(self) -> int:
        """The file to wait for."""
        return self._read_fd

    @property
    def signal_fd(self) -> int:
        """The file for ``signal.set_wakeup_fd``."""
        return self._write_fd

    def wake(self) -> None:
        """Make the pipe readable."""
        try:  # noqa: SIM105  (contextlib.suppress costs more than the write)
            os.write(self._write_fd, b"\0")
        except OSError:
            pass  # the pipe is full, so the thread wakes anyway; or it is closed

    def drain(self) -> None:
        """Forget every ``wake`` until now."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._read_fd, 4096)) == 4096:
                pass

    def close(self) -> None:
        """Close the pipe. Idempotent."""
        if self._write_fd >= 0:
            # First forgotten, then closed: a late ``wake`` must not write to the next file that
            # gets this number.
            pipe = self._read_fd, self._write_fd
            self._read_fd = self._write_fd = -1
            for fd in pipe:
                os.close(fd)
