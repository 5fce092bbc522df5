"""Asking a running worker for its stacks from a process that did not start it. Linux only.

Each worker has a file in memory for this. On ``ATTACH_SIGNAL`` faulthandler writes the stacks
there, and the process that asked reads them through ``/proc``. Neither the run's log nor the
driver's terminal shows them, and the driver need not even run.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from lockstep.engine.titles import SERVER_TITLE
from lockstep.errors import EngineError

__all__ = [
    "ATTACH_SIGNAL",
    "StackRequest",
    "answer_requests",
    "ask_workers",
    "is_worker",
    "start_ticks",
]

ATTACH_SIGNAL = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Makes a worker write its threads' stacks to its file in memory."""

_FILE = "lockstep-stacks"
_POLL_S = 0.005
_MAX_BYTES = 1 << 20
_SERVER = (SERVER_TITLE.encode(), b"lockstep.engine.forkserver")
"""In the command line of a fork server: its title, or its program where it has no title."""


def answer_requests() -> None:
    """In a worker: answer every ``StackRequest`` from now on, whatever the interpreter is doing."""
    if sys.platform == "linux":
        file = os.memfd_create(_FILE)
        # So that whoever asks may empty the file: the next dump is then written to its beginning.
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(ATTACH_SIGNAL, file=file, all_threads=True)


class StackRequest:
    """Asks a worker for its threads' stacks, whatever it is doing; close it after use.

    Args:
        pid: the worker's process.
        started: when it started, as the run has recorded it (``WorkerInfo.started``).

    Raises:
        EngineError: the process is not that worker (any more), or this user may not signal it.
    """

    def __init__(self, pid: int, started: int) -> None:
        if sys.platform != "linux":
            raise EngineError(f"a worker's stacks can only be read on Linux; it is {sys.platform}")
        try:
            # The handle stays with this process, even if its number is reused meanwhile.
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            raise EngineError(f"process {pid} has ended") from None
        except (OSError, OverflowError) as error:  # the journal may say anything
            raise EngineError(f"process {pid} cannot be reached ({error})") from error
        try:
            _check(pid, started)
            self._fd = _open_file(pid)
            try:
                self._start = os.fstat(self._fd).st_size
                if self._start > _MAX_BYTES:
                    os.ftruncate(self._fd, 0)
                    self._start = 0
                signal.pidfd_send_signal(handle, ATTACH_SIGNAL)
            except BaseException:
                os.close(self._fd)
                raise
        except (FileNotFoundError, ProcessLookupError):
            raise EngineError(f"process {pid} has ended") from None
        except PermissionError:
            raise EngineError(
                f"process {pid} belongs to another user; ask as that user or as root"
            ) from None
        finally:
            os.close(handle)

    def lines(self) -> list[str]:
        """The lines that the worker has written until now."""
        size = min(os.fstat(self._fd).st_size - self._start, _MAX_BYTES)
        text = os.pread(self._fd, max(0, size), self._start).decode("utf-8", "replace")
        return text.split("\n")[:-1]

    def __enter__(self) -> StackRequest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)


def ask_workers(
    workers: Sequence[tuple[int, int]], is_complete: Callable[[list[str]], bool], seconds: float
) -> list[list[str] | str]:
    """Ask workers of this machine for their stacks, all at once.

    Args:
        workers: each one's pid, and when it started.
        is_complete: whether these lines are all that a worker writes.
        seconds: how long all of them together may take.

    Returns:
        For each worker the lines that it has written, or why it could not be asked.
    """
    answers: list[list[str] | str] = []
    with ExitStack() as opened:
        requests: list[StackRequest | str] = []
        for pid, started in workers:
            try:
                requests.append(opened.enter_context(StackRequest(pid, started)))
            except EngineError as error:
                requests.append(str(error))
        deadline = time.monotonic() + seconds
        for request in requests:
            if isinstance(request, str):
                answers.append(request)
                continue
            while not is_complete(lines := request.lines()) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            answers.append(lines)
    return answers


def _open_file(pid: int) -> int:
    """Open the worker's file in memory."""
    for link in Path("/proc", str(pid), "fd").iterdir():
        try:
            if os.readlink(link).startswith(f"/memfd:{_FILE}"):
                return os.open(link, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # closed meanwhile
            continue
    raise EngineError(f"process {pid} has closed the file for its stacks")


def is_worker(pid: int, started: int) -> bool:
    """Whether the worker that a run has recorded still runs, seen from this machine."""
    try:
        _check(pid, started)
    except (EngineError, OSError):
        return False
    return True


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since the machine did; 0 where that is not known.

    No clock that can be set is involved.
    """
    try:
        return _parent_and_start(Path("/proc", str(pid)))[1]
    except OSError:
        return 0


def _check(pid: int, started: int) -> None:
    """Make sure that it is the worker: the signal would kill a process without a handler."""
    process = Path("/proc", str(pid))
    parent, ticks = _parent_and_start(process)
    if started and ticks != started:
        raise EngineError(f"the worker has ended, and process {pid} is another process now")
    # A worker may have changed its own command line; its parent, the server, has not.
    commands = [(Path("/proc", str(number)) / "cmdline").read_bytes() for number in (pid, parent)]
    if not any(name in command for name in _SERVER for command in commands):
        raise EngineError(f"process {pid} is not a worker's own process")
    status = (process / "status").read_text(encoding="utf-8", errors="replace")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if fields["State"].split()[0] in "ZX":  # a zombie, or dead
        raise EngineError(f"process {pid} has ended")
    if not int(fields["SigCgt"], 16) >> (ATTACH_SIGNAL - 1) & 1:
        raise EngineError(f"process {pid} is not ready to show its stacks; try again")


def _parent_and_start(process: Path) -> tuple[int, int]:
    # The name of the program comes first, in parentheses, and may contain spaces.
    fields = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    values = fields.split()
    return int(values[1]), int(values[19])
