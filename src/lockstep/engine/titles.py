"""What processes are called in ``ps`` and ``top``. Linux only; elsewhere nothing happens."""

from __future__ import annotations

import contextlib
import sys
from functools import cache
from typing import Any

__all__ = ["SERVER_TITLE", "set_title"]

SERVER_TITLE = "lockstep fork server"
"""How the title of a fork server, and of its keeper, begins."""

_SET_NAME = 15  # PR_SET_NAME
_NAME_BYTES = 15


def set_title(title: str, name: str, suffix: str = "") -> None:
    """Call this process ``title`` (``ps -f``), and in short ``name`` and ``suffix`` (``top``).

    The title is written over the command line, where the kernel looks for it. Nothing else reads
    that memory: Python copied the arguments when it started. A long title is cut.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        import ctypes

        start, size = _command_line()
        text = _plain(title).encode("utf-8", "replace")[: size - 2]
        # The kernel takes the text up to the first zero byte for a title if the last byte of the
        # command line is not zero.
        ctypes.memmove(start, text.ljust(size - 1, b"\0") + b"\1", size)
        room = _NAME_BYTES - len(suffix)
        short = _plain(name).encode("utf-8", "replace")[:room].decode("utf-8", "ignore") + suffix
        _libc().prctl(_SET_NAME, short.encode(), 0, 0, 0)


@cache
def _command_line() -> tuple[int, int]:
    """Where the command line lies in memory, and how long it is. A fork has the same."""
    with open("/proc/self/stat", "rb") as file:
        # The name of the program comes first, in parentheses, and may contain spaces.
        values = file.read().rpartition(b")")[2].split()
    start, end = int(values[45]), int(values[46])
    if start <= 0 or end - start < 2:
        raise ValueError("this system does not say where the command line is")
    return start, end - start


@cache
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None)


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
