"""A trainer kept with its run, so that the run can be restored without the script that began it.

What the run has achieved is in the journal, as plain JSON; this is only the code and the configs.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockstep.journal import JOURNAL_FILE
from lockstep.records import newest_run
from lockstep.storage import Storage, open_storage
from lockstep.train.serialize import dump

if TYPE_CHECKING:
    import pyarrow.fs

    from lockstep.train.trainer import DataParallelTrainer

__all__ = ["TRAINER_FILE", "save_trainer", "saved_trainer"]

TRAINER_FILE = "trainer.pkl"


def save_trainer(trainer: DataParallelTrainer) -> bytes:
    """The trainer's arguments, each pickled by itself; callbacks that cannot be are left out."""
    arguments = {
        "train_loop_per_worker": trainer.train_loop_per_worker,
        "train_loop_config": trainer.train_loop_config,
        "backend_config": trainer.backend_config,
        "scaling_config": trainer.scaling_config,
        "metadata": trainer.metadata,
        "resume_from_checkpoint": trainer.resume_from_checkpoint,
        # Its place is the run's own, and a filesystem may hold credentials.
        "run_config": replace(
            trainer.run_config, callbacks=(), storage_filesystem=None, storage_path=None
        ),
    }
    kept = {name: dump(value, name, by_value=True) for name, value in arguments.items()}
    callbacks = []
    for callback in trainer.run_config.callbacks:
        try:
            callbacks.append(dump(callback, "callback", by_value=True))
        except TypeError:
            continue  # it holds a connection or a file; give it to restore() again
    return pickle.dumps({**kept, "callbacks": callbacks})


def saved_trainer(
    path: str | os.PathLike[str], filesystem: pyarrow.fs.FileSystem | None
) -> tuple[Storage, dict[str, Any]]:
    """The run at ``path`` (or the newest one in it) and the arguments of its trainer.

    Raises:
        FileNotFoundError: there is no run, or nothing to restore it with.
    """
    storage = open_storage(path, filesystem)
    if not storage.exists(JOURNAL_FILE):
        storage = newest_run(storage)
    if not storage.exists(TRAINER_FILE):
        raise FileNotFoundError(
            f"{storage.path(TRAINER_FILE)} is missing: the run's driver was killed before anything "
            "was trained, so there is nothing to restore; start it anew."
        )
    kept = pickle.loads(storage.read(TRAINER_FILE))
    callbacks = [pickle.loads(callback) for callback in kept.pop("callbacks")]
    arguments = {name: pickle.loads(value) for name, value in kept.items()}
    arguments["run_config"] = replace(arguments["run_config"], callbacks=callbacks)
    return storage, arguments
