"""Giving a run another trial's checkpoint to go on from (population based training)."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace

from lockstep.errors import CheckpointError
from lockstep.journal import parse_line
from lockstep.retention import CheckpointRecord
from lockstep.storage import Storage
from lockstep.storage.base import MANIFEST, join
from lockstep.train.checkpoints import checkpoint_name, is_numbered
from lockstep.train.run import Run

__all__ = ["adopt_checkpoint"]

_PREFIX = "lockstep-adopt-"


def adopt_checkpoint(run: Run, experiment: Storage, source: str) -> None:
    """Copy another run's checkpoint into ``run`` as its newest one.

    Copied, so that the run is whole by itself and may go on from there as often as it fails. The
    donor may have deleted it meanwhile: then its newest one is taken.

    Args:
        run: a run that is open and not driven yet.
        experiment: the directory with both runs in it.
        source: the checkpoint, relative to it.

    Raises:
        CheckpointError: the donor has no checkpoint any more.
    """
    directory, _, name = source.partition("/")
    donor = experiment.child(directory)
    manifest = donor.manifest(name)
    if manifest is None:
        left = [other for other in donor.listdir("") if is_numbered(other)]
        found = [other for other in left if donor.is_published(other)]
        name = found[-1] if found else name
        manifest = donor.manifest(name)
    if manifest is None:
        raise CheckpointError(
            f"{run.name} is to go on from {source}, which is gone; keep more checkpoints: "
            "CheckpointConfig(num_to_keep=…)."
        )
    newest = run.newest_checkpoint()
    number = 0 if newest is None else newest.id + 1
    record = replace(
        CheckpointRecord(**parse_line(manifest)),
        id=number,
        name=checkpoint_name(number),
        index=run.rows,
        timestamp=int(time.time()),
    )
    _copy(donor, name, run.storage, run.storage.stage(record.name))
    run.publish(record)
    for old in run.committed(record):
        run.delete(old)


def _copy(donor: Storage, name: str, storage: Storage, stage: str) -> None:
    files = [file for file in donor.walk_files(name) if file != MANIFEST]
    if donor.is_local:
        for file in files:
            storage.put(join(stage, file), donor.path(join(name, file)))
        return
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as directory:
        donor.get(name, directory)
        storage.each(
            files, lambda file: storage.put(join(stage, file), os.path.join(directory, file))
        )
