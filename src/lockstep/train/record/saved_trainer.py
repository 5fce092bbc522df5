"""A trainer kept with its run, so that the run can be restored without the script that began it.

What the run has achieved is in the journal, as plain JSON; this is only the code and the configs.
"""

from __future__ import annotations

import os
import pickle
import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockstep.journal.records import RunRecords, newest_run
from lockstep.run_layout import JOURNAL_FILE, TRAINER_FILE
from lockstep.storage import Storage, open_storage
from lockstep.train.function.sources import used_sources
from lockstep.train.record.kept_objects import KeptObjects, pickle_each, pickle_run_config
from lockstep.train.record.large_objects import LargeObjects

if TYPE_CHECKING:
    import pyarrow.fs

    from lockstep.train.trainer import DataParallelTrainer

__all__ = ["is_saved", "run_storage", "save_trainer", "saved_sources", "saved_trainer"]

_REQUIRED = (
    "train_loop_per_worker",
    "train_loop_config",
    "backend_config",
    "dataset_config",
    "scaling_config",
    "metadata",
    "preprocessor",
    "resume_from_checkpoint",
    "validation_config",
)
"""The arguments without which there is no trainer, besides ``run_config`` and ``datasets``."""

_REPLACEABLE = (
    "train_loop_per_worker",
    "train_loop_config",
    "scaling_config",
    "run_config",
    "datasets",
)
"""The arguments that ``restore()`` accepts instead of the kept ones."""

DATASET_BYTES = 64 << 20
"""The largest dataset, in memory and pickled, that is kept with the run."""


def save_trainer(trainer: DataParallelTrainer, storage: Storage) -> None:
    """Keep the trainer's arguments, each pickled by itself.

    Left out: callbacks, a run config and datasets that cannot be pickled, and large datasets.
    """
    like = trainer.train_loop_per_worker
    large = LargeObjects()
    required = {name: getattr(trainer, name) for name in _REQUIRED}
    kept: dict[str, Any] = pickle_each(required, like, outside=large.persistent_id)
    kept |= pickle_run_config(trainer.run_config, like)
    small = {
        name: dataset
        for name, dataset in trainer.datasets.items()
        if callable(dataset) or dataset.memory_bytes() <= DATASET_BYTES
    }
    # A function that no worker needs may hold a connection.
    pickled = pickle_each(small, like, skip_unpicklable=True)
    kept["datasets"] = {
        name: data if (data := pickled.get(name)) and len(data) <= DATASET_BYTES else None
        for name in trainer.datasets
    }
    kept["sources"] = used_sources(trainer.sources, trainer.train_loop_per_worker)
    # Before trainer.pkl, which refers to these files.
    large.save(storage)
    storage.write(TRAINER_FILE, pickle.dumps(kept))


def run_storage(path: str | os.PathLike[str], filesystem: pyarrow.fs.FileSystem | None) -> Storage:
    """The run at ``path``, or the newest one in it.

    Raises:
        FileNotFoundError: there is no run.
    """
    storage = open_storage(path, filesystem)
    return storage if storage.exists(JOURNAL_FILE) else newest_run(storage)


def is_saved(storage: Storage) -> bool:
    """Whether the run has its trainer with it."""
    return storage.exists(TRAINER_FILE)


def saved_sources(storage: Storage) -> dict[str, str]:
    """File → source code of the run's training function, as ``sources_of`` had it."""
    sources: dict[str, str] = pickle.loads(storage.read(TRAINER_FILE))["sources"]
    return sources


def saved_trainer(storage: Storage, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a run's trainer, without those that could not be kept and those ``given``.

    Of datasets those that are not given are added to those that are.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: one of them cannot be loaded, or a dataset was not kept; names it.
    """
    if not is_saved(storage):
        if "trial" in RunRecords(storage).run:
            raise FileNotFoundError(
                f"{storage.uri} is a trial of an experiment, which is restored as a whole: "
                f"Tuner.restore({posixpath.dirname(storage.uri)!r}). To train the trial alone, "
                "start a run with its config, from its checkpoint."
            )
        raise FileNotFoundError(
            f"{storage.path(TRAINER_FILE)} is missing (a driver killed as it began has not written "
            "it yet), so the training function is not known: give train_loop_per_worker and the "
            "configs to restore(), or start a new run."
        )
    pickled = pickle.loads(storage.read(TRAINER_FILE))
    kept = KeptObjects(pickled, f"restore({storage.uri!r}): the run's", _REPLACEABLE, storage)
    datasets = dict(given.get("datasets") or {})
    for name, dataset in pickled["datasets"].items():
        if name not in datasets:
            if dataset is None:
                raise ValueError(
                    f"{kept.owner} dataset {name!r} could not be kept with it (too large in "
                    "memory, or a function that cannot be pickled); give "
                    f"datasets={{{name!r}: …}} to restore()."
                )
            datasets[name] = kept.load(dataset, "datasets")
    arguments = {name: kept.load(pickled[name], name) for name in _REQUIRED if name not in given}
    if "run_config" in pickled and "run_config" not in given:
        arguments["run_config"] = kept.load_run_config()
    return {**arguments, "datasets": datasets}
