"""Copying a checkpoint of another run into a run: of a trial's donor, or of a fork's parent."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace

from lockstep.errors import CheckpointError, StorageError
from lockstep.journal.records import address_from, open_checkpoint
from lockstep.retention import CheckpointRecord
from lockstep.run_layout import MANIFEST, checkpoint_name, scratch_prefix
from lockstep.storage import Storage
from lockstep.storage.base import join
from lockstep.train.record.run import Run

__all__ = ["copy_checkpoint"]


def copy_checkpoint(run: Run, donor: Storage, found: CheckpointRecord) -> None:
    """Make a checkpoint of the run in ``donor`` the newest one of ``run``.

    The checkpoint is copied. So the run does not depend on the donor, and can resume from the copy
    as often as it fails. A checkpoint that was never uploaded is registered where it is.

    Args:
        run: an open run without a controller.
        donor: the other run's directory.
        found: the record of the checkpoint there.

    Raises:
        CheckpointError: its run has deleted it.
        StorageError: it cannot be read, or written.
    """
    newest = run.newest_checkpoint()
    number = 0 if newest is None else newest.id + 1
    # A user's own directory may have such a name.
    while checkpoint_name(number) in run.taken_names():
        number += 1
    record = replace(found, id=number, index=run.rows, timestamp=int(time.time()))
    if record.awaits_validation:  # the donor validates its own
        record = replace(record, validation=None)
    if record.uploaded:
        record = replace(record, name=checkpoint_name(number))
        try:
            _copy(donor, found.name, run.storage, run.stage(record.name))
        except (FileNotFoundError, StorageError):
            if donor.is_published(found.name):
                raise
        # After the copy: its run may have deleted it meanwhile, before a file was listed or after.
        if not donor.is_published(found.name):
            run.discard(record.name)
            raise CheckpointError(
                f"{found.name} of {donor.uri} was deleted before it was copied: its run keeps "
                "fewer checkpoints. Take a newer one, or keep more with "
                "CheckpointConfig(num_to_keep=…)."
            )
    else:
        record = replace(record, name=address_from(run.storage, open_checkpoint(donor, record)))
    # As a report's checkpoint: published, journaled, and only then are old ones deleted.
    run.publish(record)
    for old in run.record_checkpoint(record):
        run.delete(old)


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
