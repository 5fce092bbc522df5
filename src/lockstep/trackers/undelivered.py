"""Rows that a tracking service did not get before the run ended: kept with the run, sent later.

A file in the run's directory has one JSON object a line: first which tracker, with which
arguments, which trial and outcome, then the rows. It holds no secrets and no pickles.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lockstep.callback import TrialSnapshot
from lockstep.errors import LockstepError
from lockstep.run_layout import is_undelivered, undelivered_file
from lockstep.storage.base import Storage
from lockstep.trackers.files import replace_file
from lockstep.trackers.values import Outcome

__all__ = [
    "Row",
    "Undelivered",
    "delete",
    "file_name",
    "files_below",
    "keep",
    "plain_arguments",
    "read",
    "without_login",
]


class Row(NamedTuple):
    """One report, or one ``train.log()`` call."""

    step: int
    time: float
    values: dict[str, Any]
    logged: bool = False
    """Whether it comes from ``train.log()``, whose steps are the user's."""


class Undelivered(NamedTuple):
    """What one tracker lacks of one run."""

    tracker: str
    arguments: dict[str, Any]
    trial: TrialSnapshot
    outcome: Outcome
    rows: list[Row]


def file_name(tracker: str, arguments: dict[str, Any]) -> str:
    """The name of a tracker's file: two trackers of a class differ in their arguments."""
    return undelivered_file(tracker, zlib.crc32(json.dumps(arguments, sort_keys=True).encode()))


def keep(undelivered: Undelivered) -> str | None:
    """Write the file; return its path, or None if the run's directory is gone."""
    trial = undelivered.trial
    if not os.path.isdir(trial.path):
        return None
    path = os.path.join(trial.path, file_name(undelivered.tracker, undelivered.arguments))
    head = {
        "tracker": undelivered.tracker,
        "arguments": undelivered.arguments,
        "outcome": undelivered.outcome,
        "trial_id": trial.trial_id,
        "trainable_name": trial.trainable_name,
        "experiment_name": trial.experiment_name,
        "config": trial.config,
    }
    lines = [json.dumps(head, default=repr), *(json.dumps(row) for row in undelivered.rows)]
    replace_file(path, (f"{line}\n".encode() for line in lines))
    return path


def read(data: bytes, path: str) -> Undelivered:
    """Read a file's content; ``path``: the run's directory.

    Raises:
        LockstepError: the file is damaged.
    """
    try:
        head, *rows = [json.loads(line) for line in data.splitlines()]
        names = ("trial_id", "trainable_name", "experiment_name", "config")
        trial = TrialSnapshot(path=path, restored=True, **{name: head[name] for name in names})
        outcome: Outcome = head["outcome"]
        if outcome not in ("finished", "failed", "stopped"):
            raise ValueError(outcome)
        kept = [Row(*row) for row in rows]
        return Undelivered(head["tracker"], dict(head["arguments"]), trial, outcome, kept)
    except (ValueError, KeyError, TypeError) as error:
        raise LockstepError(
            f"The undelivered rows in {path} cannot be read ({type(error).__name__}: {error}); "
            "progress.csv has every report."
        ) from None


def files_below(run: Storage) -> Iterator[tuple[Storage, str]]:
    """Every such file of a run, or of an experiment's runs."""
    for name in sorted(run.listdir()):
        if is_undelivered(name):
            yield run, name
        elif not name.startswith(".") and run.is_directory(name):
            child = run.child(name)
            yield from ((child, file) for file in sorted(child.listdir()) if is_undelivered(file))


def delete(storage: Storage, name: str) -> None:
    """Delete a file whose rows are delivered."""
    if storage.is_local:
        os.unlink(storage.path(name))
    else:
        storage.filesystem.delete_file(storage.path(name))


def plain_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Only what JSON can hold, without what a default gives anyway."""
    return {name: value for name, value in arguments.items() if value and _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, bool))


def without_login(uri: str | None) -> str | None:
    """Leave a user name and a password out of a URI."""
    parts = urlsplit(uri or "")
    if "@" not in parts.netloc:
        return uri
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
