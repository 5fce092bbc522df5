"""What workers and drivers that died have left on this machine, and how it is removed."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile

from lockstep.lock import is_locked
from lockstep.run_layout import JOURNAL_FILE, SNAPSHOT_PREFIX, snapshot_prefix, spool_prefix

__all__ = ["clear_dead_spools", "clear_snapshots"]


def clear_snapshots(directory: str, trial_id: str, root: str) -> None:
    """Delete what the workers of the run at ``root``, which are gone, had still to upload."""
    _remove(directory, SNAPSHOT_PREFIX)
    _remove(tempfile.gettempdir(), snapshot_prefix(trial_id, root))


def clear_dead_spools() -> None:
    """Delete what drivers that were killed had still to upload. Their records stay."""
    for spool in _entries(tempfile.gettempdir(), spool_prefix()):
        if _is_mine(spool) and is_locked(os.path.join(spool, JOURNAL_FILE)) is False:
            _remove(spool, SNAPSHOT_PREFIX)


def _remove(folder: str, prefix: str) -> None:
    for path in _entries(folder, prefix):
        shutil.rmtree(path, ignore_errors=True)


def _entries(folder: str, prefix: str) -> list[str]:
    # Not glob: its cache keeps every pattern, and each run has a prefix of its own.
    try:
        return [
            os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(prefix)
        ]
    except OSError:
        return []


def _is_mine(directory: str) -> bool:
    """Whether this user made the directory: in another user's, opening a file may block."""
    try:
        status = os.lstat(directory)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
