"""``lockstep env RUN``: the versions, the commit, the command line and the hardware of a run."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from lockstep.cli.command import Command, add_run
from lockstep.cli.output import date, print_facts, print_json
from lockstep.errors import StorageError
from lockstep.journal import parse_line
from lockstep.lookup import find_run
from lockstep.records import damage_named
from lockstep.run_layout import ENVIRONMENT_FILE
from lockstep.storage import Storage, open_storage

__all__ = ["COMMAND", "environment_of", "start_facts"]


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
                facts = dict(_facts(environment))
                yield "git", facts["git"]
                yield "command", facts["command"]
    except StorageError as error:
        yield "environment", str(error)


def _git_text(git: dict[str, Any] | None) -> str:
    if not git:
        return "not in a repository"
    if git["commit"] is None:
        return "git did not answer before the run ended"
    changes = "with changes that were not committed" if git["dirty"] else "without changes"
    return f"{git['commit']}, {changes}"


def _env(options: Namespace) -> int:
    run = find_run(options.run, pieces=True)
    environment = environment_of(run)
    if environment is None:
        raise FileNotFoundError(
            f"{run.uri} has no {ENVIRONMENT_FILE}: its environment was not recorded."
        )
    if options.json:
        print_json(environment)
    else:
        with damage_named(run.path(ENVIRONMENT_FILE)):
            print_facts(list(_facts(environment)))
    return 0


def _facts(environment: dict[str, Any]) -> Iterator[tuple[str, str]]:
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


COMMAND = Command(
    "env",
    "what a run was started with: versions, git commit, command line, hardware",
    (
        "lockstep env -1              of the newest run",
        "lockstep env mnist --json    for a script",
    ),
    add_run,
    _env,
)
