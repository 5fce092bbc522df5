"""The lock beside a journal: one process writes the journal, and others can see that it lives.

The lock is a file of its own that only its owner may open, so nobody else can hold it: who may read
a journal could lock the journal itself. The kernel releases the lock when the process dies, however
it dies. A forked child closes its copy, because a lock is held as long as any copy is open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
import weakref

from lockstep.errors import StorageError
from lockstep.run_layout import lock_path

__all__ = ["Lock", "is_locked"]

_PATIENCE_S = 0.2
"""How long a held lock is asked for again: ``is_locked`` holds it for a moment."""
_POLL_S = 0.01
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a filesystem without locks answers."""


class Lock:
    """Held from its creation until ``release``.

    Args:
        path: the journal that it guards.

    Raises:
        StorageError: another process holds it, or its file cannot be made.
    """

    def __init__(self, path: str) -> None:
        self._path = lock_path(path)
        self._fd = -1
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                if self._take():
                    return
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"the run in {os.path.dirname(path)} is still being driven by another "
                        "process; wait for it, or end it first."
                    ) from error
                time.sleep(_POLL_S)
            except OSError as error:
                raise StorageError(
                    f"could not lock the journal {path} with the file {self._path}: "
                    f"{error.strerror}."
                ) from error

    def release(self) -> None:
        """Delete the file and let others take the lock. Idempotent."""
        if self._fd >= 0:
            # Deleted while the lock is held: who has opened the file meanwhile will see that.
            with contextlib.suppress(OSError):
                if self._is_current():
                    os.unlink(self._path)
            self._drop()

    def _take(self) -> bool:
        """Lock the file; False if it was deleted meanwhile, and so locks nothing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        self._fd = os.open(self._path, flags, 0o600)
        _open_locks.add(self)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_current():
                return True
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return True
            self._drop()
            raise
        self._drop()
        return False

    def _is_current(self) -> bool:
        """Whether the open file is still the one at the path."""
        return os.path.samestat(os.fstat(self._fd), os.stat(self._path))

    def _drop(self) -> None:
        """Close the file. After a fork this leaves the lock to the parent."""
        descriptor, self._fd = self._fd, -1
        _open_locks.discard(self)
        with contextlib.suppress(OSError):
            os.close(descriptor)


_open_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _drop_in_child() -> None:
    for lock in list(_open_locks):
        lock._drop()


os.register_at_fork(after_in_child=_drop_in_child)


def is_locked(path: str) -> bool | None:
    """Whether a process holds the lock of the journal at ``path``.

    None if that cannot be known: the lock is another user's, or the filesystem has no locks.
    """
    try:
        descriptor = os.open(lock_path(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
