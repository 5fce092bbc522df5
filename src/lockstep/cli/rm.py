"""``lockstep rm RUN…``: deletes runs and experiments that do not run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack

from lockstep.cli.command import Command, add_run
from lockstep.cli.output import print_json
from lockstep.console.text import clean, plural
from lockstep.errors import LockstepError
from lockstep.journal.lock import Lock, is_locked
from lockstep.journal.lookup import find_place
from lockstep.journal.records import RunRecords, damage_named
from lockstep.observe.state import may_run
from lockstep.run_layout import JOURNAL_FILE, TEMPORARY, experiment_number
from lockstep.storage import Storage
from lockstep.storage.base import storage_errors

__all__ = ["COMMAND"]


def _arguments(parser: ArgumentParser) -> None:
    add_run(parser, nargs="+")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _rm(options: Namespace) -> int:
    places = [find_place(text, pieces=True) for text in options.run]
    for place in places:  # nothing is deleted if one of them must stay
        _check(place)
    removed = []
    for place in places:
        files = place.walk_files()
        size = sum(files.values()) / 1e6
        about = f"{clean(place.uri)}: {plural(len(files), 'file')}, {size:,.1f} MB"
        if options.yes or _agreed(about):
            _remove(place)
            removed.append(place.uri)
            if not options.json:
                print(f"Deleted {about}.")
    if options.json:
        print_json({"deleted": removed})
    return 0 if len(removed) == len(places) else 1


def _agreed(about: str) -> bool:
    print(f"Delete {about}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _journals(place: Storage) -> list[tuple[Storage, str]]:
    """The journals of a run, or of an experiment and its runs: (directory, file)."""
    if place.exists(JOURNAL_FILE):
        return [(place, JOURNAL_FILE)]
    names = place.listdir()
    found = [(place, name) for name in names if experiment_number(name) is not None]
    runs = map(place.child, names)
    return found + [(run, JOURNAL_FILE) for run in runs if run.exists(JOURNAL_FILE)]


def _check(place: Storage) -> None:
    journals = _journals(place)
    if not journals:
        raise FileNotFoundError(
            f"{place.uri} is neither a run nor an experiment; lockstep rm deletes nothing else."
        )
    for directory, journal in journals:
        if journal != JOURNAL_FILE:
            running = place.is_local and is_locked(os.path.join(place.root, journal))
        else:
            try:
                with damage_named(directory.path(journal)):
                    running = may_run(directory, RunRecords(directory))
            except (LockstepError, FileNotFoundError):  # nothing that runs, but what is damaged
                running = directory.is_local and is_locked(directory.path(journal))
        if running:
            raise LockstepError(
                f"{directory.uri} is running, or may be on another machine; end it first, and "
                "delete it from the machine that it ran on."
            )


def _remove(place: Storage) -> None:
    if not place.is_local:
        with storage_errors("delete", place.uri):
            place.filesystem.delete_dir(place.root)
        return
    folder, name = os.path.split(os.path.realpath(place.root))
    with ExitStack() as locks, storage_errors("delete", place.root):
        for directory, journal in _journals(place):  # no driver can start meanwhile
            locks.callback(Lock(directory.path(journal)).release)
        # Renamed first: a run is there as a whole or not at all, also if this is interrupted.
        trash = tempfile.mkdtemp(prefix=f"{TEMPORARY}rm-", dir=folder)
        os.rename(os.path.join(folder, name), os.path.join(trash, name))
        shutil.rmtree(trash)


COMMAND = Command(
    "rm",
    "delete runs and experiments; asks first, and never deletes one that runs",
    (
        "lockstep rm -1             the newest run, after a question",
        "lockstep rm old-a old-b --yes",
    ),
    _arguments,
    _rm,
)
