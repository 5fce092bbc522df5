"""Finding a run by what its user calls it: a directory, a URI, a name, a trial id."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from lockstep import settings
from lockstep.errors import LockstepError
from lockstep.journal.records import RunRecords, newest_run, start_time
from lockstep.redact import redact
from lockstep.run_layout import JOURNAL_FILE, SPOOL_PREFIX
from lockstep.storage import Storage, open_storage

__all__ = [
    "find_place",
    "find_run",
    "is_own_directory",
    "own_directories",
    "own_spools",
    "parent_of",
    "run_name",
]

_MAX_NAMED = 5
_RUN_DIRECTORY = re.compile(r"(?P<name>.+_(?P<id>(?P<short>[0-9a-f]{5})_\d{5}))_.*")


def find_run(text: str, *, pieces: bool = False) -> Storage:
    """The run that ``text`` names; the newest one of an experiment. ``pieces``: see find_place.

    Raises:
        FileNotFoundError: there is none.
    """
    place = find_place(text, pieces=pieces)
    return place if place.exists(JOURNAL_FILE) else newest_run(place)


def find_place(text: str, *, pieces: bool = False) -> Storage:
    """The directory of the run or the experiment that ``text`` names.

    A directory or a URI; or, below the results root, the name of an experiment, or the name or
    trial id of a run. Names are looked for among this user's own directories only.

    Args:
        text: what the user calls it.
        pieces: also accept a piece of a name that only one has, ``-1`` for the newest run below
            the results root, ``-2`` for the one before. For people who type; a script means what
            it says.

    Raises:
        FileNotFoundError: there is none, or the piece or the beginning of an id fits several.
    """
    if "://" in text or os.path.isdir(os.path.expanduser(text)):
        return open_storage(text)
    root = open_storage(settings.results_root())
    if pieces and re.fullmatch(r"-[1-9]\d{0,8}", text):
        return _by_age(root, int(text))
    foreign: list[Storage] = []
    begin_so: dict[str, Storage] = {}
    for place, longer in chain(_named(root, text), _spools(text)):
        if not _is_own(place):
            foreign.append(place)
        elif longer is None:
            return place
        else:
            begin_so[longer] = place
    if len(begin_so) > 1:
        raise FileNotFoundError(
            f"{redact(text)!r} is the beginning of {len(begin_so)} trial ids: "
            f"{_first_names(list(begin_so))}; give the whole id."
        )
    if begin_so:
        return next(iter(begin_so.values()))
    if pieces and text and not foreign and (only := _with_piece(root, text)):
        return only
    why = f"is neither a directory nor a name or trial id below {root.uri}"
    if foreign:
        why = f"names {foreign[0].uri}, which belongs to another user"
    raise FileNotFoundError(f"{redact(text)!r} {why}; give the run's directory.")


def _named(root: Storage, text: str) -> Iterator[tuple[Storage, str | None]]:
    """What is called so; with its trial id, if ``text`` is only the beginning of that."""
    if not os.path.isabs(text) and ".." not in Path(text).parts and root.is_directory(text):
        yield root.child(text), None
    for _, experiment in own_directories(root):
        for run in experiment.listdir():
            match = _RUN_DIRECTORY.fullmatch(run)
            if match and text in (run, match["name"], match["id"], match["short"]):
                yield experiment.child(run), match["id"] if text == match["short"] else None


def own_directories(place: Storage) -> Iterator[tuple[str, Storage]]:
    """The directories in a directory, with their names; of a local one, this user's own."""
    for name in place.listdir() if place.is_directory() else ():
        directory = place.child(name)
        if is_own_directory(directory.root) if place.is_local else place.is_directory(name):
            yield name, directory


def _by_age(root: Storage, number: int) -> Storage:
    """The newest run for -1, the one before for -2."""
    runs: list[tuple[float, str, Storage]] = []
    below = (
        run for _, experiment in own_directories(root) for _, run in own_directories(experiment)
    )
    for run in chain(below, own_spools()):
        with suppress(LockstepError, FileNotFoundError):
            if run.exists(JOURNAL_FILE) and (started := start_time(run)) is not None:
                runs.append((started, run.uri, run))
    if -number > len(runs):
        count = (
            f"are only {len(runs)} runs" if runs[1:] else "is only one run" if runs else "is no run"
        )
        raise FileNotFoundError(f"there is no run {number}: there {count} below {root.uri}.")
    return sorted(runs, key=lambda run: run[:2])[number][2]


def _with_piece(root: Storage, text: str) -> Storage | None:
    """The only experiment or, if no experiment fits, the only run whose name contains ``text``."""
    experiments = list(own_directories(root))
    found = [(name, place) for name, place in experiments if text in name]
    if not found:
        found = [
            (f"{name}/{run}", place.child(run))
            for name, place in experiments
            for run in place.listdir()
            if text in run and _RUN_DIRECTORY.fullmatch(run) and _is_own(place.child(run))
        ]
    if len(found) > 1:
        names = _first_names([name for name, _ in found])
        raise FileNotFoundError(
            f"{redact(text)!r} is a piece of {len(found)} names: {names}; give more of the name."
        )
    return found[0][1] if found else None


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _is_own(place: Storage) -> bool:
    return not place.is_local or is_own_directory(place.root)


def own_spools() -> Iterator[Storage]:
    """This user's runs on remote storage whose driver is on this machine, with a local journal."""
    folder = tempfile.gettempdir()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.startswith(SPOOL_PREFIX) and is_own_directory(path):
            yield open_storage(path)


def _spools(text: str) -> Iterator[tuple[Storage, str | None]]:
    for storage in own_spools():
        try:
            run = RunRecords(storage).run
        except (FileNotFoundError, LockstepError):
            continue
        trial_id = str(run.get("trial_id"))
        names = (run.get("experiment_name"), run_name(run), trial_id)
        if text in names or text == trial_id[:5]:
            yield storage, None if text in names else trial_id


def parent_of(run: Storage, header: dict[str, Any], *, connect: bool = True) -> Storage | None:
    """The run that the one in ``run`` was forked from; None if it is no fork.

    Args:
        run: the fork's directory.
        header: the first record of its journal.
        connect: follow a URI that a journal on this machine names.

    Raises:
        FileNotFoundError: the parent's directory is gone.
    """
    parent = header.get("parent")
    if parent is None:
        return None
    places: list[Callable[[], Storage]] = []
    if "relative" in parent:
        path = os.path.normpath(os.path.join(run.root, str(parent["relative"])))
        places.append(lambda: open_storage(path, None if run.is_local else run.filesystem))
    if connect or not run.is_local or "://" not in str(parent["path"]):
        places.append(lambda: open_storage(str(parent["path"])))
    for place in places:
        with suppress(LockstepError, OSError, ValueError):
            found = place()
            if _trial_id(found) == parent["trial_id"]:
                return found
    raise FileNotFoundError(
        f"{run.uri} was forked from {parent['path']}, which is gone or is another run now."
    )


def _trial_id(run: Storage) -> str | None:
    return str(RunRecords(run).run["trial_id"]) if run.exists(JOURNAL_FILE) else None


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
