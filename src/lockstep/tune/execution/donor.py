"""Copying another trial's checkpoint into a run (population based training)."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from dataclasses import replace

from lockstep.errors import CheckpointError
from lockstep.journal import parse_line
from lockstep.records import RunRecords, address_from, open_checkpoint
from lockstep.retention import CheckpointRecord
from lockstep.run_layout import MANIFEST, checkpoint_name, scratch_prefix
from lockstep.storage import Storage
from lockstep.storage.base import join
from lockstep.train.record.run import Run

__all__ = ["copy_donor_checkpoint"]


def copy_donor_checkpoint(run: Run, experiment: Storage, source: str) -> None:
    """Make a donor's checkpoint the newest one of ``run``.

    The checkpoint is copied. So the run does not depend on the donor, and can resume from the copy
    as often as it fails. A checkpoint that was never uploaded is registered where it is.

    Args:
        run: an open run without a controller.
        experiment: the directory with both runs in it.
        source: ``<directory of the donor's run>/<name of the checkpoint>``.

    Raises:
        CheckpointError: the checkpoint was deleted.
    """
    directory, _, name = source.partition("/")
    donor = experiment.child(directory)
    found = _find_record(donor, name)
    if found is None:
        raise CheckpointError(
            f"{run.name} must continue from the checkpoint {name} of {directory}, which was "
            "deleted; keep the checkpoints of an experiment while it runs."
        )
    newest = run.newest_checkpoint()
    number = 0 if newest is None else newest.id + 1
    # A user's own directory may have such a name.
    while checkpoint_name(number) in run.taken_names():
        number += 1
    record = replace(found, id=number, index=run.rows, timestamp=int(time.time()))
    if record.uploaded:
        record = replace(record, name=checkpoint_name(number))
        _copy(donor, name, run.storage, run.storage.stage(record.name))
    else:
        record = replace(record, name=address_from(run.storage, open_checkpoint(donor, record)))
    # As a report's checkpoint: published, journaled, and only then are old ones deleted.
    run.publish(record)
    for old in run.record_checkpoint(record):
        run.delete(old)


def _find_record(donor: Storage, name: str) -> CheckpointRecord | None:
    if not name.startswith("/") and "://" not in name:
        # The manifest first: it needs one read, the donor's journal may be long.
        manifest = donor.manifest(name)
        if manifest is not None:
            return CheckpointRecord.of(parse_line(manifest))
    with suppress(FileNotFoundError):  # not the directory of a run, or deleted
        for record in RunRecords(donor).checkpoints.values():
            if record.name in (name, f"./{name}") and not record.uploaded:
                return record
    return None


def _copy(donor: Storage, name: str, storage: Storage, stage: str) -> None:
    files = [file for file in donor.walk_files(name) if file != MANIFEST]
    if donor.is_local:
        for file in files:
            storage.put(join(stage, file), donor.path(join(name, file)))
        return
    with tempfile.TemporaryDirectory(prefix=scratch_prefix("donor")) as directory:
        donor.get(name, directory)
        storage.each(
            files, lambda file: storage.put(join(stage, file), os.path.join(directory, file))
        )
