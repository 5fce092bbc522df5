"""Process groups and families: finding, killing, and reading why the kernel killed a process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Literal

from lockstep.errors import EngineError

__all__ = [
    "STACK_SIGNAL",
    "adopt_orphans",
    "children",
    "current_directory",
    "descendants",
    "describe_memory",
    "end_own_family",
    "group_exists",
    "kill_children",
    "kill_family",
    "kill_group",
    "oom_kills",
    "process_handle",
    "process_state",
]

# SIGUSR1 and SIGUSR2 are left to batch systems and frameworks.
STACK_SIGNAL = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Makes a worker write its threads' stacks to its stderr."""

KILL_TIMEOUT_S = 1.0
"""How long ``kill_children`` retries."""


def current_directory() -> str:
    """The current directory: workers start in it.

    Raises:
        EngineError: the directory has been removed.
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise EngineError(
            "the current directory, in which workers would start, has been removed; change to "
            "one that exists (os.chdir)."
        ) from None


def process_handle(pid: int) -> int | None:
    """A file that becomes readable when the process ends; None where the system has none.

    Unlike the end of a socket, forked processes cannot delay it.
    """
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None


def process_state(pid: int) -> Literal["running", "stopped", "ended"]:
    """What a process does: ``ended`` also if its parent has not noticed yet.

    ``stopped``: by a SIGSTOP or a debugger. Not known where there is no ``/proc``.
    """
    try:
        # The name of the program comes first, in parentheses, and may contain spaces.
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except OSError:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, 0)
            return "running"
        return "ended"
    return "stopped" if state in b"Tt" else "ended" if state in b"ZX" else "running"


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends. Linux only."""
    if sys.platform == "linux":
        import ctypes

        set_child_subreaper = 36  # PR_SET_CHILD_SUBREAPER; a fork does not inherit it
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def end_own_family() -> None:
    """SIGKILL to the descendants of this process, then to its group and to itself."""
    for descendant in descendants(os.getpid()):
        _kill(descendant)
    kill_group(os.getpid())


def kill_family(pid: int) -> None:
    """SIGKILL to a process, its group, and its descendants that have left the group."""
    family = descendants(pid)
    kill_group(pid)
    for descendant in family:
        _kill(descendant)


def kill_children() -> None:
    """SIGKILL to every descendant of this process, until none is left."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            _kill(pid)
        # The children of a killed process become children of this one: look again.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)


def descendants(pid: int) -> list[int]:
    """Every descendant of ``pid``; empty on a system that does not list them."""
    found: list[int] = []
    pending = [pid]
    while pending:
        below = children(pending.pop())
        found += below
        pending += below
    return found


def children(pid: int) -> list[int]:
    """The children of ``pid``; empty if it has ended, and on a system that does not list them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def kill_group(pid: int) -> None:
    """SIGKILL to a process group and to its leader, which may not have joined the group yet."""
    _kill(-pid)
    _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def group_exists(group: int) -> bool:
    """Whether a process group has a member left."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def oom_kills(root: str = "/") -> int:
    """How many processes of this cgroup the kernel has killed because memory ran out.

    Where cgroups do not count that, of the whole machine. ``root``: where proc and sys are mounted.
    """
    files = _cgroup_files(root, "memory.events", "memory.oom_control")
    for path in (*files, os.path.join(root, "proc/vmstat")):
        try:
            with open(path, encoding="ascii") as file:
                counts = dict(line.split()[:2] for line in file if " " in line)
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def describe_memory(peak: int, root: str = "/") -> str:
    """The most memory that a process had, in bytes, beside what there is, as text."""
    text = f"its memory peaked at {_size(peak)}"
    machine = limit = 0
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        with open(os.path.join(root, "proc/meminfo"), encoding="ascii") as file:
            facts = dict(line.split(":", 1) for line in file)
        machine = int(facts["MemTotal"].split()[0]) * 1024
    for path in _cgroup_files(root, "memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            limit = int(file.read())  # "max" where there is none
            break
    if limit and (not machine or limit < machine):
        return f"{text}; its cgroup may use {_size(limit)}"
    return f"{text}; this machine has {_size(machine)}" if machine else text


def _size(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def _cgroup_files(root: str, second: str, first: str) -> list[str]:
    """Files of this cgroup, by the machine's path and by a container's.

    Args:
        root: where proc and sys are mounted.
        second: the file's name in the second version of cgroups.
        first: its name in the first version.
    """
    try:
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8") as file:
            entries = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    found = []
    for number, controllers, place in (entry for entry in entries if len(entry) == 3):
        if number == "0":
            mount, name = "sys/fs/cgroup", second
        elif "memory" in controllers.split(","):
            mount, name = "sys/fs/cgroup/memory", first
        else:
            continue
        found += [os.path.join(root, mount, part, name) for part in (place.lstrip("/"), "")]
    return found
