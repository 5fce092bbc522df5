"""What workers and drivers that died have left on this machine, and how it is removed."""

from __future__ import annotations

import glob
import os
import shutil
import stat
import tempfile

from lockstep.journal import is_driven
from lockstep.run_layout import JOURNAL_FILE, SNAPSHOT_PREFIX, snapshot_prefix, spool_prefix

__all__ = ["clear_dead_spools", "clear_snapshots"]


def clear_snapshots(directory: str, trial_id: str, root: str) -> None:
    """Delete what the workers of the run at ``root``, which are gone, had still to upload."""
    _remove(directory, SNAPSHOT_PREFIX)
    _remove(tempfile.gettempdir(), snapshot_prefix(trial_id, root))


def clear_dead_spools() -> None:
    """Delete what drivers that were killed had still to upload. Their records stay."""
    spools = os.path.join(glob.escape(tempfile.gettempdir()), f"{spool_prefix()}*")
    for snapshot in glob.glob(os.path.join(spools, f"{SNAPSHOT_PREFIX}*")):
        spool = os.path.dirname(snapshot)
        if _is_mine(spool) and not is_driven(os.path.join(spool, JOURNAL_FILE)):
            shutil.rmtree(snapshot, ignore_errors=True)


def _remove(folder: str, prefix: str) -> None:
    for path in glob.glob(os.path.join(glob.escape(folder), f"{prefix}*")):
        shutil.rmtree(path, ignore_errors=True)


def _is_mine(directory: str) -> bool:
    """Whether this user made the directory: in another user's, opening a file may block."""
    try:
        status = os.lstat(directory)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
