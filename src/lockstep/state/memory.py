"""Anonymous memory that several processes share, and how one opens that of another.

The memory has no name in a file system: it is gone when the last process has closed it, however
that process ends. A process opens it through the other's entry in ``/proc``.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

__all__ = ["CHUNK", "checksum", "create_memory", "open_memory"]

CHUNK = 64 << 20
"""How much of a snapshot one call writes. The call does not hold the interpreter's lock."""

_numbers = itertools.count(1)


def create_memory(size: int) -> tuple[int, str]:
    """Memory of this size, reserved; returns its descriptor and its name, which is its own.

    Raises:
        OSError: there is not enough, or the system has no such memory.
    """
    name = f"lockstep-state-{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}"
    if not hasattr(os, "memfd_create"):
        raise OSError("the system has no anonymous files")
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        # Reserved now: where it is missing later, the process that writes to it would be killed.
        os.posix_fallocate(descriptor, 0, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, name


def open_memory(pid: int, descriptor: int, name: str, size: int) -> int:
    """A descriptor of this process for the memory that another process has open.

    Raises:
        OSError: it is not open there any more, or that process is not on this machine.
    """
    opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        # The process may be gone, and another have its number: the name is the memory's own.
        link = os.readlink(f"/proc/self/fd/{opened}")
        if name not in link or os.fstat(opened).st_size < size:
            raise OSError(f"{link} is not {name}")
    except BaseException:
        os.close(opened)
        raise
    return opened


def checksum(buffer: Any, size: int, threads: int = 1) -> tuple[int, ...]:
    """The sum of the words of each ``CHUNK`` of a buffer, as fast as the memory is read.

    ``threads``: how many read it at once, none of which holds the interpreter's lock. One thread
    does not read as fast as the memory is, and where it is mapped first, it maps it alone.
    """
    starts = range(0, size, CHUNK)
    if min(threads, len(starts)) < 2:
        return tuple(_sum(buffer, start, min(CHUNK, size - start)) for start in starts)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(threads, len(starts)), "lockstep-sum") as pool:
        sums = pool.map(lambda start: _sum(buffer, start, min(CHUNK, size - start)), starts)
        return tuple(sums)


def _sum(buffer: Any, start: int, length: int) -> int:
    import numpy as np

    words = np.frombuffer(buffer, "<u8", length // 8, start)
    rest = bytes(memoryview(buffer)[start + length // 8 * 8 : start + length])
    total = int(np.add.reduce(words, dtype=np.uint64)) + int.from_bytes(rest, "little")
    return total % 2**64
