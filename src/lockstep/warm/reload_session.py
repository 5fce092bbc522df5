"""The script's side of ``lockstep run --reload``: what ``fit()`` asks and tells the process above.

That process starts the script again whenever its code changes. A script may call ``fit()`` several
times; the n-th call of the new script continues the run of the n-th call of the old one, or gets
its result where it has finished.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from lockstep import settings
from lockstep.warm.modules import library_directories

__all__ = ["MAX_DESCRIPTORS", "MESSAGE_SIZE", "EarlierRun", "ReloadSession", "current", "is_own"]

MESSAGE_SIZE = 1 << 16
MAX_DESCRIPTORS = 250
"""How many descriptors one message has, at most; the kernel allows three more."""
_FILES = 200
"""How many paths one message has: a message has a greatest size."""


class EarlierRun(NamedTuple):
    """The run that the same call of ``fit()`` has started before the code changed."""

    uri: str
    finished: bool


class ReloadSession:
    """One script's connection to the process that watches its files."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pid = os.getpid()
        self._calls = 0
        self._changed: str | None = None
        self.stopping: str | None = None
        """The file that has changed since this script was started."""
        self._runs: list[EarlierRun | None] = []
        self._memory: tuple[int | None, list[int]] = None, []
        sock.setblocking(True)
        first, files = self._receive()
        if first is not None:
            self._memory = first["memory"], files
            self._runs = [EarlierRun(*run) if run else None for run in first["runs"]]
            self._changed = first["changed"]

    @property
    def is_mine(self) -> bool:
        """Whether this process is the script's, and none that it has forked."""
        return self._pid == os.getpid()

    def fileno(self) -> int:
        """Readable when the code has changed."""
        return self._sock.fileno()

    def begin(self) -> tuple[int, EarlierRun | None]:
        """A call of ``fit()`` begins: its number, and its run of before."""
        self.look()
        number = self._calls
        self._calls += 1
        files = sorted(set(_own_files()))
        for begin in range(0, len(files), _FILES):
            self._tell(files=files[begin : begin + _FILES])
        return number, self._runs[number] if number < len(self._runs) else None

    def look(self) -> str | None:
        """The file that has changed since this script was started; None if none has."""
        if self._sock.fileno() < 0:
            return self.stopping
        self._sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            message, _ = self._receive()
            if message is None:
                self._sock.close()  # the process above is gone: the script runs to its end
            else:
                self.stopping = message["stop"]
        return self.stopping

    def opened(self, number: int, uri: str) -> str | None:
        """The run of this call is open. Returns the file whose change it continues after."""
        self._tell(fit=number, run=uri)
        return self._changed

    def take(self, number: int) -> list[int]:
        """The descriptors that this call's driver has handed over before, once; else empty."""
        wanted, files = self._memory
        if wanted != number:
            return []
        self._memory = None, []
        return files

    def hand_over(self, number: int, files: list[int]) -> None:
        """Let the process above keep what these descriptors are of, for the next script.

        Raises:
            OSError: the process above is gone.
        """
        self._sock.setblocking(True)
        message = json.dumps({"fit": number, "memory": number}).encode()
        socket.send_fds(self._sock, [message], files)

    def stored(self, number: int) -> None:
        """What was handed over is on storage."""
        self._tell(fit=number, memory=None)

    def finished(self, number: int) -> None:
        """The run of this call needs nothing any more."""
        self._tell(fit=number, finished=True)

    def stopped(self) -> None:
        """The run has stopped because of the change, and the script ends now."""
        self._tell(stopped=True)

    def _tell(self, **message: Any) -> None:
        self._sock.setblocking(True)
        with contextlib.suppress(OSError):  # the process above is gone
            self._sock.send(json.dumps(message).encode())

    def _receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        data, files, _, _ = socket.recv_fds(self._sock, MESSAGE_SIZE, MAX_DESCRIPTORS)
        for file in files:
            os.set_inheritable(file, False)
        return json.loads(data) if data else None, files


_session: ReloadSession | None = None


def current() -> ReloadSession | None:
    """The session of this script; None unless ``lockstep run --reload`` has started it."""
    global _session
    number = settings.take_reload_descriptor()
    if number is not None:
        with contextlib.suppress(OSError):  # a child of the script, which has not inherited it
            sock = socket.socket(fileno=number)
            sock.set_inheritable(False)
            _session = ReloadSession(sock)
    open_here = _session is not None and _session.is_mine and _session.fileno() >= 0
    return _session if open_here else None


def is_own(path: str) -> bool:
    """Whether a source file is the user's own, and not of a library, Python or lockstep."""
    return path.endswith(".py") and not path.startswith(_foreign_roots())


@lru_cache(maxsize=1)
def _foreign_roots() -> tuple[str, ...]:
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    roots = {here, *standard, *library_directories()}
    return tuple(root.rstrip(os.sep) + os.sep for root in roots)


def _own_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and is_own(path := os.path.abspath(path)):
            yield path
