"""What a process has from whoever started it: taken from a client, given to a forked process."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping

from lockstep.warm.identity import LIMITS

TYPE_CHECKING = False  # see lockstep/__init__.py
if TYPE_CHECKING:
    from typing import Any

__all__ = ["adopt", "capture", "open_streams", "reset_signals"]

_PYTHON_IGNORES = {signal.SIGPIPE, signal.SIGXFSZ}
"""The interpreter ignores them itself."""


def capture(
    environment: Mapping[str, str], numbers: list[int] | None = None
) -> tuple[dict[str, Any], list[int]]:
    """What this process was started with, as values, and the files to send along.

    The first file is the working directory, which the caller must close.

    Args:
        environment: the variables of the new process.
        numbers: the files to send; None: all that a child inherits.
    """
    mask, ignored = _umask_and_ignored()
    inherited = _inheritable() if numbers is None else numbers
    values = {
        "environ": {os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
        "umask": mask,
        "limits": [resource.getrlimit(limit)[0] for limit in LIMITS],
        "ignored": ignored,
        "numbers": inherited,
    }
    return values, [os.open(".", os.O_PATH | os.O_DIRECTORY), *inherited]


def _inheritable() -> list[int]:
    found = []
    for number in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the descriptor that listed the directory
            if os.get_inheritable(number):
                found.append(number)
    return found


def _umask_and_ignored() -> tuple[int, list[int]]:
    # Not os.umask(), which can only be asked by changing it: other threads may create files.
    with open("/proc/self/status", "rb") as file:
        found = dict(line.split(b":", 1) for line in file.read().splitlines())
    if missing := {b"SigIgn", b"Umask"} - found.keys():
        # Some sandboxes, and old kernels, do not tell. Callers start without a warm server then.
        raise OSError(f"/proc/self/status has no {missing.pop().decode()}")
    mask = int(found[b"SigIgn"], 16)
    # The valid ones: the C library keeps two for itself, and may have ignored them.
    ignored = {int(number) for number in signal.valid_signals() if mask >> (number - 1) & 1}
    return int(found[b"Umask"], 8), sorted(ignored - _PYTHON_IGNORES)


def reset_signals() -> None:
    """Every disposition as in a new interpreter."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    for number in _PYTHON_IGNORES:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def adopt(values: dict[str, Any], files: list[int], kept: int = -1) -> int:
    """Make this forked process look like a child of the client; the arguments are ``capture``'s.

    ``kept`` is a file that stays open, under the number that is returned.
    """
    import importlib
    import random
    import threading

    directory, *received = files
    os.fchdir(directory)
    os.close(directory)
    kept = _place_files(dict(zip(values["numbers"], received, strict=True)), kept)
    os.umask(values["umask"])
    for limit, soft in zip(LIMITS, values["limits"], strict=True):
        if resource.getrlimit(limit)[0] != soft:
            resource.setrlimit(limit, (soft, resource.getrlimit(limit)[1]))
    os.environb.clear()
    os.environb.update(values["environ"])
    time.tzset()
    reset_signals()
    for number in values["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    if faulthandler.is_enabled():  # its handlers were among those that were reset
        faulthandler.disable()
        faulthandler.enable(file=2)
    importlib.invalidate_caches()
    main: Any = threading.main_thread()
    if hasattr(main, "_set_native_id"):  # Python leaves the parent's
        main._set_native_id()
    # A fork copies the random state: all scripts would draw the same numbers.
    random.seed()
    if "multiprocessing.process" in sys.modules:  # nor may one script's key open another's sockets
        multiprocessing = sys.modules["multiprocessing.process"]
        multiprocessing.current_process().authkey = os.urandom(32)
        with contextlib.suppress(OSError):
            multiprocessing.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    return kept


def _place_files(wanted: dict[int, int], kept: int) -> int:
    """Give each received file its number in the client, and close all others but one."""
    above = max([2, *wanted, *wanted.values()]) + 1
    if kept >= 0:
        kept = _at_least(kept, above)
    # First out of the way: a file's number may be the one another has now.
    moved = {number: os.dup(fd) for number, fd in wanted.items()}
    moved = {number: _at_least(fd, above) for number, fd in moved.items()}
    for number, fd in moved.items():
        os.dup2(fd, number, inheritable=True)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number not in wanted and number != kept:
            with contextlib.suppress(OSError):
                os.close(number)
    return kept


def _at_least(fd: int, least: int) -> int:
    import fcntl

    if fd >= least:
        return fd
    higher = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(fd)
    return higher


def open_streams(like: tuple[tuple[str, str], ...], *, unbuffered: bool = False) -> None:
    """``sys.stdin``, ``stdout`` and ``stderr`` as the interpreter opens them.

    Args:
        like: encoding and errors of each, as the interpreter chose them when it started.
        unbuffered: as with ``python -u``.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if fd:  # preloaded libraries may have kept the old one
            getattr(sys, name).reconfigure(line_buffering=True)
        stream = _open_stream(fd, name, *like[fd], unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _open_stream(fd: int, name: str, encoding: str, errors: str, unbuffered: bool) -> Any:
    import io

    try:
        os.fstat(fd)
    except OSError:
        return None  # the caller has closed it
    mode = "r" if name == "stdin" else "w"
    raw: Any = io.FileIO(fd, mode, closefd=False)
    raw.name = f"<{name}>"
    buffer: Any
    if mode == "r":
        buffer = io.BufferedReader(raw)
    else:
        buffer = raw if unbuffered else io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        buffer,
        encoding,
        errors,
        newline="\n",
        line_buffering=not unbuffered and (name == "stderr" or raw.isatty()),
        write_through=unbuffered,
    )
    stream.mode = mode  # type: ignore[misc]
    return stream
