"""Asking a running worker for its stacks from a process that did not start it. Linux only."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from lockstep.engine.processes import STACK_SIGNAL
from lockstep.errors import EngineError

__all__ = ["is_worker", "request_stacks"]

_SERVER = b"lockstep.engine.forkserver"
_CLOCK_S = 2.0
"""How far the times in the run's journal and the kernel's times may differ."""


def request_stacks(pid: int, recorded: float) -> None:
    """Make a worker write its threads' stacks to its output, whatever it is doing.

    Args:
        pid: the worker's process.
        recorded: when the run recorded that this worker is up, in seconds since the epoch.

    Raises:
        EngineError: the process is not that worker (any more), or this user may not signal it.
    """
    if sys.platform != "linux":
        raise EngineError(f"a worker's stacks can only be read on Linux; this is {sys.platform}")
    try:
        # The handle stays with this process, even if its number is reused meanwhile.
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        raise EngineError(f"process {pid} has ended") from None
    try:
        _check(pid, recorded)
        signal.pidfd_send_signal(handle, STACK_SIGNAL)
    except (FileNotFoundError, ProcessLookupError):
        raise EngineError(f"process {pid} has ended") from None
    except PermissionError:
        raise EngineError(
            f"process {pid} belongs to another user; ask as that user or as root"
        ) from None
    finally:
        os.close(handle)


def is_worker(pid: int, recorded: float) -> bool:
    """Whether the worker that a run recorded at that time still runs, seen from this machine."""
    try:
        _check(pid, recorded)
    except (EngineError, OSError):
        return False
    return True


def _check(pid: int, recorded: float) -> None:
    """Make sure that it is the worker: the signal would kill a process without a handler."""
    process = Path("/proc", str(pid))
    parent, started = _parent_and_start(process)
    if started > recorded + _CLOCK_S:
        raise EngineError(f"the worker has ended, and process {pid} is another process now")
    # A worker may have changed its own command line; its parent, the server, has not.
    commands = [(Path("/proc", str(number)) / "cmdline").read_bytes() for number in (pid, parent)]
    if not any(_SERVER in command for command in commands):
        raise EngineError(f"process {pid} is not a worker's own process")
    status = (process / "status").read_text(encoding="utf-8", errors="replace")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if fields["State"].split()[0] in "ZX":  # a zombie, or dead
        raise EngineError(f"process {pid} has ended")
    if not int(fields["SigCgt"], 16) >> (STACK_SIGNAL - 1) & 1:
        raise EngineError(f"process {pid} is not ready to show its stacks; try again")


def _parent_and_start(process: Path) -> tuple[int, float]:
    # The name of the program comes first, in parentheses, and may contain spaces.
    fields = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    values = fields.split()
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    age = uptime - int(values[19]) / os.sysconf("SC_CLK_TCK")
    return int(values[1]), time.time() - age
