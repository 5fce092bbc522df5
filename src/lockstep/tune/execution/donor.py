"""Copying another trial's checkpoint into a run (population based training)."""

from __future__ import annotations

from contextlib import suppress

from lockstep.errors import CheckpointError
from lockstep.journal import parse_line
from lockstep.journal.records import RunRecords
from lockstep.retention import CheckpointRecord
from lockstep.storage import Storage
from lockstep.train.record.copied import copy_checkpoint
from lockstep.train.record.run import Run

__all__ = ["copy_donor_checkpoint"]


def copy_donor_checkpoint(run: Run, experiment: Storage, source: str) -> None:
    """Make a donor's checkpoint the newest one of ``run``.

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
    copy_checkpoint(run, donor, found)


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
