"""What workers and drivers that died have left on this machine, and how it is removed."""

from __future__ import annotations

import os
import shutil
import tempfile

from lockstep.lock import is_locked
from lockstep.lookup import is_own_directory
from lockstep.run_layout import JOURNAL_FILE, SNAPSHOT_PREFIX, snapshot_prefix, spool_prefix

__all__ = ["clear_dead_spools", "clear_snapshots"]


def clear_snapshots(directory: str, trial_id: str, root: str) -> None:
    """Delete what the workers of the run at ``root``, which are gone, had still to upload."""
    _remove(directory, SNAPSHOT_PREFIX)
    _remove(tempfile.gettempdir(), snapshot_prefix(trial_id, root))


def clear_dead_spools() -> None:
    """Delete what drivers that were killed had still to upload. Their records stay."""
    for spool in _entries(tempfile.gettempdir(), spool_prefix()):
        # In a directory of another user, to open a file may wait for ever.
        if is_own_directory(spool) and is_locked(os.path.join(spool, JOURNAL_FILE)) is False:
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
