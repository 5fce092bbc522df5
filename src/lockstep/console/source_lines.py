"""Lines of source code, for stacks that other processes have written."""

from __future__ import annotations

import linecache
import os
import stat

__all__ = ["source_line"]

MAX_BYTES = 4 << 20
"""Larger files are not read: no source file that a person has written is that long."""


def source_line(file: str, line: int) -> str:
    """The text of a line; empty where it cannot be read.

    The name of the file comes from outside. So only a regular ``.py`` file is read, never a device
    or a pipe, and never more than ``MAX_BYTES``. A notebook's cells are in no file, but known.
    """
    known = linecache.cache.get(file)
    if known is not None and len(known) > 1:
        return _nth(known[2], line)
    try:
        if not (os.path.isabs(file) and os.path.realpath(file).endswith(".py")):
            return ""
        # Not blocking: to open a pipe would wait for its other end.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
                return ""
            text = opened.read(MAX_BYTES)
    except (OSError, ValueError):
        return ""
    return _nth(text.decode("utf-8", "replace").splitlines(), line)


def _nth(lines: list[str], line: int) -> str:
    return lines[line - 1] if 0 < line <= len(lines) else ""
