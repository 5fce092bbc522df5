"""Flushing a large file while it is written, where the system can.

Else the system keeps what is written in memory, and the disk starts with the flush at the end. That
takes longer, and a process in it cannot even be killed: it ends when the disk is done.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from functools import lru_cache

__all__ = ["Writeback"]

_PIECE = 32 << 20
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM)


class Writeback:
    """Lets the disk write one piece of a file while the next one is handed to the system.

    At most two pieces are not on the disk yet. It replaces no flush: the file's size, and what the
    disk has in its own memory, are safe only after that.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._works = True
        self._begun = 0
        """Up to there the disk has its orders."""
        self._pieces: deque[tuple[int, int]] = deque()

    def wrote(self, end: int) -> None:
        """Everything up to ``end`` was handed to the system.

        Raises:
            OSError: the disk could not write an earlier piece. No later flush would say so.
        """
        if end - self._begun < _PIECE or not self._works:
            return
        piece = self._begun, end - self._begun
        self._begun = end
        self._order(*piece, _WRITE)
        self._pieces.append(piece)
        if len(self._pieces) > 1:
            self._order(*self._pieces.popleft(), _WAIT_BEFORE | _WRITE | _WAIT_AFTER)

    def _order(self, start: int, size: int, flags: int) -> None:
        sync = _sync_file_range()
        code = errno.ENOSYS if sync is None else sync(self._descriptor, start, size, flags)
        # Waiting also tells, once, how earlier writing went: what that says is never passed over.
        if code in _CANNOT and flags == _WRITE:
            self._works = False  # here, or on this file system
        elif code:
            raise OSError(code, os.strerror(code))


@lru_cache(None)
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The function of Linux, which returns the number of an error or 0; None elsewhere."""
    import ctypes  # only processes that write large files need it

    try:
        function = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError, TypeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]

    def sync(descriptor: int, start: int, size: int, flags: int) -> int:
        return ctypes.get_errno() if function(descriptor, start, size, flags) else 0

    return sync
