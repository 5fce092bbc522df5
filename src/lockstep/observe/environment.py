"""What a run was started with, as its directory has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from lockstep.console.text import date, plural
from lockstep.errors import StorageError
from lockstep.journal import parse_line
from lockstep.journal.records import damage_named
from lockstep.run_layout import ENVIRONMENT_FILE
from lockstep.storage import Storage, open_storage

__all__ = ["diff_of", "environment_facts", "environment_of", "start_facts"]


def environment_of(run: Storage) -> dict[str, Any] | None:
    """What a run was started with; a trial's is its experiment's. None if it is not recorded."""
    places = [run]
    if run.is_local:
        places.append(open_storage(os.path.dirname(run.root)))
    elif "/" in run.root.strip("/") and run.uri.rstrip("/").endswith(run.root.rpartition("/")[2]):
        with suppress(ValueError, OSError):
            places.append(open_storage(run.root.rpartition("/")[0], run.filesystem))
    for place in places:
        with suppress(FileNotFoundError), damage_named(place.path(ENVIRONMENT_FILE)):
            return parse_line(place.read(ENVIRONMENT_FILE))
    return None


def start_facts(run: Storage) -> Iterator[tuple[str, str]]:
    """The commit and the command line, for ``lockstep show``. A damaged file hides no run."""
    try:
        with damage_named(run.path(ENVIRONMENT_FILE)):
            environment = environment_of(run)
            if environment is not None:
                facts = dict(environment_facts(environment))
                yield "git", facts["git"]
                yield "command", facts["command"]
    except StorageError as error:
        yield "environment", str(error)


def _git_text(git: dict[str, Any] | None) -> str:
    if not git:
        return "not in a repository"
    if git["commit"] is None:
        return "git did not answer before the run ended"
    if not git["dirty"]:
        return f"{git['commit']}, without changes"
    lines = str(git.get("diff") or "").splitlines()
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    files = sum(line.startswith("diff --git ") for line in lines)
    size = f": {plural(files, 'file')}, +{added} -{removed} lines" if files else ""
    return f"{git['commit']}, with changes that were not committed{size}"


def diff_of(environment: dict[str, Any]) -> str:
    """What ``git diff`` said at the start of the run; empty without changes."""
    return str((environment["git"] or {}).get("diff") or "")


def environment_facts(environment: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The facts for people, label and text."""
    yield "started", date(environment["time"])
    yield "command", " ".join(environment["command"])
    yield "directory", str(environment["directory"])
    yield "git", _git_text(environment["git"])
    yield "python", environment["python"]
    yield "packages", ", ".join(f"{k} {v}" for k, v in environment["packages"].items())
    yield "host", environment["hostname"]
    yield "system", environment["system"]
    yield "hardware", f"{environment['cpus']} CPUs, {environment['memory_gib']} GiB"
    for gpu in environment["gpus"]:
        yield "GPU", gpu
