"""What two processes must have in common so that one may be forked for the other."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Collection, Mapping

from lockstep.warm.variables import matters_at_import

TYPE_CHECKING = False  # see lockstep/__init__.py
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LIMITS", "environment_identity", "interpreter_flags", "variables_that_matter"]

_VERSION = 1
"""Of everything that client and server say to each other."""

LIMITS = sorted(
    value for name, value in vars(resource).items() if name.startswith("RLIMIT_") and value >= 0
)
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_STATUS = ("Uid:", "Gid:", "Groups:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:")


def environment_identity(environment: Mapping[str, str]) -> list[Any]:
    """The interpreter, and what the kernel has tied to this process and its children.

    The values of variables are not in it, see ``variables_that_matter``.
    """
    path = environment.get("PYTHONPATH", "")
    relative = path and not all(map(os.path.isabs, path.split(os.pathsep)))
    return [
        _VERSION,
        sys.version,
        sys.executable,
        sys.prefix,
        os.path.dirname(os.path.dirname(__file__)),
        list(sys.flags),
        sorted((name, str(value)) for name, value in sys._xoptions.items()),
        list(sys.warnoptions),
        os.getcwd() if relative else "",
        sorted(os.sched_getaffinity(0)),
        [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)],
        [resource.getrlimit(limit)[1] for limit in LIMITS],
        [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES if _has_namespace(name)],
        os.readlink("/proc/self/root"),
        _text("/proc/self/cgroup"),
        _text("/proc/self/oom_score_adj"),
        [line for line in _text("/proc/self/status").splitlines() if line.startswith(_STATUS)],
    ]


def interpreter_flags() -> list[str]:
    """The options that an interpreter needs to be like this one."""
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    given = {word.partition("=")[0] for word in flags}
    for name, value in sys._xoptions.items():  # of which it knows but a few
        if name not in given:
            flags += ["-X", name if value is True else f"{name}={value}"]
    return flags


def variables_that_matter(
    environment: Mapping[str, str], reads: Collection[str], made: Mapping[str, str]
) -> dict[str, str]:
    """The variables that may have changed an import.

    Args:
        environment: the variables of the process.
        reads: the names that Python code has read while it was imported.
        made: what modules set when they are imported: in a process that has imported them, too.
    """
    return {
        name: value
        for name, value in environment.items()
        if matters_at_import(name, reads) and made.get(name) != value
    }


def _has_namespace(name: str) -> bool:
    return os.path.exists(f"/proc/self/ns/{name}")


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
