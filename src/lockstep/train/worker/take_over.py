"""Which directories a report may copy or move into a checkpoint, decided before a file is touched.

A report that moves a directory is given something to delete. A path that is one folder too high
would give away earlier runs, a home or a filesystem, so such a directory is refused.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable

from lockstep.run_layout import (
    JOURNAL_FILE,
    OWN_NAMES,
    SNAPSHOT_PREFIX,
    experiment_file,
    experiment_number,
)

__all__ = ["check_copied", "check_moved", "check_moved_files"]

_FIX = "Write the checkpoint to a directory of its own, such as a new tempfile.mkdtemp()."


def check_copied(directory: str, run_directory: str) -> None:
    """Refuse a directory that is or holds the run's: the checkpoint would contain itself.

    Raises:
        ValueError: names both directories and the fix.
    """
    run = os.path.realpath(run_directory)
    if _holds(os.path.realpath(directory), run):
        raise ValueError(
            f"report(checkpoint={directory!r}): the run's own directory {run!r} is in it, so the "
            f"checkpoint would contain the run. {_FIX}"
        )


def check_moved(directory: str, run_directory: str, *, is_spool: bool) -> None:
    """Refuse a directory that holds what is not the caller's to give, or lies in storage.

    ``is_spool``: the run's directory is a temporary one, and its experiment is elsewhere.

    Raises:
        ValueError: names the directory, what is in the way, and the fix.
    """
    real, run = os.path.realpath(directory), os.path.realpath(run_directory)
    why = _held(real) or _place_in_storage(real, run, is_spool)
    if why is not None:
        raise _refused(directory, why)


def check_moved_files(directory: str, names: Iterable[str]) -> None:
    """Refuse a directory with a run or an experiment among its files (``names``)."""
    for name in names:
        folder, _, base = name.rpartition("/")
        if _is_records(os.path.join(directory, folder), base):
            raise _refused(directory, f"it holds {name!r}, the records of a run or an experiment")


def _refused(directory: str, why: str) -> ValueError:
    return ValueError(
        f"report(delete_local_checkpoint_after_upload=True) does not move {directory!r}: {why}. "
        f"{_FIX}"
    )


def _held(directory: str) -> str | None:
    if os.path.ismount(directory):
        return "it is the root of a filesystem"
    for what, path in (
        ("the home directory", os.path.expanduser("~")),
        ("the working directory", _working_directory()),
        ("the directory for temporary files", tempfile.gettempdir()),
        ("this Python", sys.prefix),
    ):
        if path and _holds(directory, os.path.realpath(path)):
            return f"it is or holds {what}, {path!r}"
    return None


def _place_in_storage(directory: str, run: str, is_spool: bool) -> str | None:
    if _holds(run, directory):
        first = os.path.relpath(directory, run).split(os.sep)[0]
        # Made for this report, by a framework's callback or in ``RunConfig(working_dir=…)``.
        own = first in OWN_NAMES or first.startswith(".")
        if first.startswith(SNAPSHOT_PREFIX) or (
            not own and _holds(_working_directory(), directory)
        ):
            return None
        return f"it lies in the run's own directory {run!r}"
    experiment = os.path.dirname(run)
    if not is_spool and _holds(experiment, directory):
        return f"it lies in the directory of the run's experiment, {experiment!r}"
    above = directory
    # Up to the root: the directory may lie in a run of another experiment.
    while above != (above := os.path.dirname(above)):
        for name in (JOURNAL_FILE, experiment_file("journal", 1)):
            if _is_records(above, name):
                return f"it lies in {above!r}, the directory of a run or an experiment"
    return None


def _is_records(directory: str, name: str) -> bool:
    """Whether the file is the journal of a run or of an experiment, not a user's of that name."""
    if name != JOURNAL_FILE and experiment_number(name) is None:
        return False
    try:
        with open(os.path.join(directory, name), "rb") as file:
            # As every journal of lockstep begins.
            return file.read(9) == b'{"event":'
    except OSError:
        return False


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _holds(directory: str, path: str) -> bool:
    """Whether ``directory`` is ``path`` or above it; both are real paths."""
    return bool(directory) and os.path.commonpath((directory, path)) == directory
