"""What workers and drivers that died have left on this machine, and how it is removed.

Only files of this user on this machine are removed, and only those of processes that are gone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from lockstep.engine.processes import process_state
from lockstep.journal.lock import is_locked
from lockstep.journal.lookup import is_own_directory
from lockstep.run_layout import (
    COPIED_FILE,
    EXPERIMENT_SPOOL_PREFIX,
    JOURNAL_FILE,
    KEPT_FILE,
    SNAPSHOT_PREFIX,
    experiment_number,
    scratch_owner,
    snapshot_prefix,
    spool_prefix,
)

__all__ = ["clear_leftovers", "clear_snapshots", "take_lost_lines"]

KEEP_S = 7 * 86400.0
"""How long a spool stays whose last lines are not on storage: a restore here can still use them."""


def clear_snapshots(directory: str, trial_id: str, root: str) -> None:
    """Delete what the workers of the run at ``root``, which are gone, had still to upload."""
    _remove(directory, SNAPSHOT_PREFIX)
    _remove(tempfile.gettempdir(), snapshot_prefix(trial_id, root))


def clear_leftovers() -> None:
    """Delete what processes that were killed have left in the temporary directory.

    A spool stays, without files that are useless now, if lines of its journal are missing on
    storage.
    """
    directories = _entries(tempfile.gettempdir(), "lockstep-")
    for directory in directories:
        owner = scratch_owner(os.path.basename(directory))
        is_dead = owner is not None and process_state(owner) == "ended"
        if is_dead and is_own_directory(directory):
            shutil.rmtree(directory, ignore_errors=True)
    for spool, journal in _dead_spools(directories):
        _remove(spool, SNAPSHOT_PREFIX)
        if _is_copied(spool, journal):
            shutil.rmtree(spool, ignore_errors=True)


def take_lost_lines(journal: bytes) -> tuple[bytes, bool]:
    """The journal of a run with the lines that its driver, which was killed here, did not copy.

    The spool that had them is deleted. If there is none, or another driver has continued the run
    meanwhile, the journal is returned as it is, and False.
    """
    found = False
    # The first line has the run's random id, so it shows which run the spool belongs to.
    first = journal[: journal.find(b"\n") + 1]
    for spool, path in _dead_spools(_entries(tempfile.gettempdir(), "lockstep-")):
        try:
            with open(path, "rb") as file:
                if not first or file.read(len(first)) != first:
                    continue
                file.seek(0)
                data = file.read()
        except OSError:
            continue
        # The driver may have been killed in the middle of a line.
        data = data[: data.rfind(b"\n") + 1]
        # One journal must be the beginning of the other. Otherwise somebody has continued the run
        # from storage: joining the two would mix two histories.
        if data.startswith(journal):
            journal = data
        elif not journal.startswith(data):
            continue
        found = True
        # A user who was shown the path of this spool may want to look at it.
        if not os.path.exists(os.path.join(spool, KEPT_FILE)):
            shutil.rmtree(spool, ignore_errors=True)
    return journal, found


def _dead_spools(directories: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Those that are spools of drivers that are gone, each with its journal."""
    prefixes = (spool_prefix(), spool_prefix(EXPERIMENT_SPOOL_PREFIX))
    for spool in directories:
        if not os.path.basename(spool).startswith(prefixes) or not is_own_directory(spool):
            continue
        for name in _names(spool):
            path = os.path.join(spool, name)
            is_journal = name == JOURNAL_FILE or experiment_number(name) is not None
            if is_journal and is_locked(path) is False:
                yield spool, path


def _is_copied(spool: str, journal: str) -> bool:
    """Whether a spool may go: storage has every line of its journal, or it is too old."""
    if os.path.exists(os.path.join(spool, KEPT_FILE)):
        return False
    try:
        status = os.stat(journal)
    except OSError:
        return False
    copied = 0
    with suppress(OSError, ValueError), open(os.path.join(spool, COPIED_FILE)) as file:
        copied = int(file.read())
    return status.st_size <= copied or time.time() - status.st_mtime > KEEP_S


def _remove(folder: str, prefix: str) -> None:
    for path in _entries(folder, prefix):
        shutil.rmtree(path, ignore_errors=True)


def _entries(folder: str, prefix: str) -> list[str]:
    # Not glob: its cache keeps every pattern, and each run has a prefix of its own.
    return [os.path.join(folder, name) for name in _names(folder) if name.startswith(prefix)]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
