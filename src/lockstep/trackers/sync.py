"""Sends what trackers did not get of ended runs: ``lockstep sync``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from lockstep.errors import LockstepError
from lockstep.storage.base import Storage
from lockstep.trackers import undelivered
from lockstep.trackers.service import ServiceLoggerCallback

__all__ = ["send_undelivered"]

_MODULES = {
    "CometLoggerCallback": "lockstep.trackers.comet",
    "MLflowLoggerCallback": "lockstep.trackers.mlflow",
    "WandbLoggerCallback": "lockstep.trackers.wandb",
}


def send_undelivered(place: Storage) -> Iterator[str]:
    """Send the undelivered rows of a run, or of an experiment's runs; yield a sentence for each.

    A file is deleted once its rows are at the service.

    Raises:
        LockstepError: a service could not be reached or refused the rows, which stay where they
            are. Raised after every file was tried.
    """
    problems = []
    for storage, name in list(undelivered.files_below(place)):
        try:
            kept = undelivered.read(storage.read(name), storage.uri)
            _tracker(kept).deliver(kept)
        except Exception as error:
            problems.append(f"{storage.uri}: {error}")
            continue
        undelivered.delete(storage, name)
        yield f"{kept.trial}: sent {len(kept.rows)} rows and the outcome to {kept.tracker}."
    if problems:
        raise LockstepError("; ".join(problems))


def _tracker(kept: undelivered.Undelivered) -> ServiceLoggerCallback:
    # The name comes from a file: only trackers of this library are created.
    module = _MODULES.get(kept.tracker)
    if module is None:
        raise LockstepError(
            f"{kept.tracker} is not a tracker of lockstep ({', '.join(_MODULES)}): restore the "
            "run with that callback instead."
        )
    callback: ServiceLoggerCallback = getattr(importlib.import_module(module), kept.tracker)(
        **kept.arguments
    )
    callback.check_before_run()
    return callback
