"""Finding a run by what its user calls it: a directory, a URI, a name, a trial id."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from lockstep import settings
from lockstep.errors import LockstepError
from lockstep.records import RunRecords, newest_run
from lockstep.redact import redact
from lockstep.run_layout import JOURNAL_FILE, SPOOL_PREFIX
from lockstep.storage import Storage, open_storage

__all__ = ["find_place", "find_run", "is_own_directory", "run_name"]

_RUN_DIRECTORY = re.compile(r"(?P<name>.+_(?P<id>(?P<short>[0-9a-f]{5})_\d{5}))_.*")


def find_run(text: str) -> Storage:
    """The run that ``text`` names; the newest one of an experiment.

    Raises:
        FileNotFoundError: there is none.
    """
    place = find_place(text)
    return place if place.exists(JOURNAL_FILE) else newest_run(place)


def find_place(text: str) -> Storage:
    """The directory of the run or the experiment that ``text`` names.

    A directory or a URI; or, below the results root, the name of an experiment, or the name or
    trial id of a run. Names are looked for among this user's own directories only.

    Raises:
        FileNotFoundError: there is none.
    """
    if "://" in text or os.path.isdir(os.path.expanduser(text)):
        return open_storage(text)
    root = open_storage(settings.results_root())
    foreign: list[Storage] = []
    for place in chain(_named(root, text), _spools(text)):
        if not place.is_local or is_own_directory(place.root):
            return place
        foreign.append(place)
    why = f"is neither a directory nor a name or trial id below {root.uri}"
    if foreign:
        why = f"names {foreign[0].uri}, which belongs to another user"
    raise FileNotFoundError(f"{redact(text)!r} {why}; give the run's directory.")


def _named(root: Storage, text: str) -> Iterator[Storage]:
    if not os.path.isabs(text) and ".." not in Path(text).parts and root.is_directory(text):
        yield root.child(text)
    if not root.is_directory():
        return
    for name in root.listdir():
        experiment = root.child(name)
        if experiment.is_local and not is_own_directory(experiment.root):
            continue
        for run in experiment.listdir() if root.is_directory(name) else ():
            match = _RUN_DIRECTORY.fullmatch(run)
            if match and text in (run, match["name"], match["id"], match["short"]):
                yield experiment.child(run)


def _spools(text: str) -> Iterator[Storage]:
    """Runs on remote storage whose driver is on this machine, with a local journal."""
    folder = tempfile.gettempdir()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.startswith(SPOOL_PREFIX) or not is_own_directory(path):
            continue
        storage = open_storage(path)
        try:
            run = RunRecords(storage).run
        except (FileNotFoundError, LockstepError):
            continue
        trial_id = str(run.get("trial_id"))
        if text in (run.get("experiment_name"), run_name(run), trial_id, trial_id[:5]):
            yield storage


def run_name(run: dict[str, Any]) -> str:
    """``TorchTrainer_3f2a1_00000``, from the first record of the run's journal."""
    return f"{run.get('trainer')}_{run.get('trial_id')}"


def is_own_directory(path: str) -> bool:
    """Whether ``path`` is a directory, not a link to one, that belongs to this user."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
