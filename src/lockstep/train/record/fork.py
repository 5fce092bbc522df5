"""A fork: a new run that starts from a checkpoint of another, its parent.

The checkpoint is copied, so that the parent may delete its own; the parent's metrics are not: the
fork's journal says which run it is, and up to which report.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import Any, NamedTuple

from lockstep.config import RunConfig
from lockstep.journal.records import RunRecords, existing_checkpoints
from lockstep.retention import CheckpointRecord
from lockstep.storage import Storage
from lockstep.train.record.copied import copy_checkpoint
from lockstep.train.record.run import Run

__all__ = ["Fork", "choose_fork"]

_MAX_NAMED = 10


class Fork(NamedTuple):
    """Where a new run branches off.

    Attributes:
        parent: the parent's directory.
        header: the first record of the parent's journal.
        checkpoint: the checkpoint to start from.
    """

    parent: Storage
    header: dict[str, Any]
    checkpoint: CheckpointRecord

    @property
    def trainer_name(self) -> str:
        """What the parent's trainer is called."""
        return str(self.header["trainer"])

    def placed(self, run_config: RunConfig, name: str | None) -> RunConfig:
        """The parent's config, for a run beside the parent or below another ``name``."""
        experiment = posixpath.dirname(self.parent.root.rstrip("/"))
        return replace(
            run_config,
            name=name or str(self.header["experiment_name"]),
            storage_path=posixpath.dirname(experiment),
            storage_filesystem=None if self.parent.is_local else self.parent.filesystem,
            resume="never",
        )

    def record(self, run: Storage) -> dict[str, Any]:
        """What the journal of a fork in ``run`` says of its parent."""
        record = {
            "path": self.parent.uri,
            "trial_id": self.header["trial_id"],
            "step": self.checkpoint.iteration,
            "reports": self.checkpoint.index,
        }
        if run.same_filesystem(self.parent):
            # Holds when both are moved together.
            record["relative"] = posixpath.relpath(self.parent.root, run.root)
        return record

    def copy_into(self, run: Run) -> None:
        """Make the checkpoint the first one of ``run``.

        Raises:
            CheckpointError: the parent has deleted it meanwhile.
        """
        copy_checkpoint(run, self.parent, self.checkpoint)


def choose_fork(parent: Storage, step: int | None) -> Fork:
    """The fork of a run at a step, a ``training_iteration``; None: at its newest checkpoint.

    Nothing of the parent is changed, and it may be running.

    Raises:
        TypeError: ``step`` is no number.
        ValueError: there is no checkpoint at this step; names those there are.
    """
    if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
        raise TypeError(f"fork(step={step!r}): expected the number of a report, or None.")
    records = RunRecords(parent)
    kept = existing_checkpoints(parent, records.checkpoints)
    if not kept:
        raise ValueError(
            f"{parent.uri} has no checkpoint to fork from; report one, or start a new run."
        )
    if step is None:
        return Fork(parent, records.run, kept[-1])
    fitting = [record for record in kept if record.iteration == step]
    if not fitting:
        there = _name_steps(sorted({record.iteration for record in kept}), step)
        raise ValueError(f"{parent.uri} has no checkpoint at step {step}; it has {there}.")
    return Fork(parent, records.run, fitting[-1])


def _name_steps(steps: list[int], wanted: int) -> str:
    if len(steps) <= _MAX_NAMED:
        return ", ".join(map(str, steps))
    near = sorted(sorted(steps, key=lambda one: abs(one - wanted))[:2])
    return f"{len(steps)} from {steps[0]} to {steps[-1]}, the nearest {near[0]} and {near[1]}"
