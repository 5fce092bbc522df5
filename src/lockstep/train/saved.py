"""A trainer kept with its run, so that the run can be restored without the script that began it.

What the run has achieved is in the journal, as plain JSON; this is only the code and the configs.
"""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockstep.journal import JOURNAL_FILE
from lockstep.records import newest_run
from lockstep.storage import Storage, open_storage
from lockstep.train.serialize import dump

if TYPE_CHECKING:
    import pyarrow.fs

    from lockstep.train.trainer import DataParallelTrainer

__all__ = ["TRAINER_FILE", "is_saved", "run_storage", "save_trainer", "saved_trainer"]

TRAINER_FILE = "trainer.pkl"


def save_trainer(trainer: DataParallelTrainer, storage: Storage) -> None:
    """Keep the trainer's arguments, each pickled by itself.

    Callbacks that cannot be are left out, and so is a run config whose ``stop`` cannot be.
    """
    arguments = {
        "train_loop_per_worker": trainer.train_loop_per_worker,
        "train_loop_config": trainer.train_loop_config,
        "backend_config": trainer.backend_config,
        "scaling_config": trainer.scaling_config,
        "metadata": trainer.metadata,
        "resume_from_checkpoint": trainer.resume_from_checkpoint,
    }
    kept = {name: dump(value, name, by_value=True) for name, value in arguments.items()}
    # Its place is the run's own, and a filesystem may hold credentials.
    run_config = replace(
        trainer.run_config, callbacks=(), storage_filesystem=None, storage_path=None
    )
    with suppress(TypeError):
        kept["run_config"] = dump(run_config, "run_config", by_value=True)
    callbacks = []
    for callback in trainer.run_config.callbacks:
        try:
            callbacks.append(dump(callback, "callback", by_value=True))
        except TypeError:
            continue  # it holds a connection or a file; give it to restore() again
    storage.write(TRAINER_FILE, pickle.dumps({**kept, "callbacks": callbacks}))


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


def saved_trainer(storage: Storage) -> dict[str, Any]:
    """The arguments of a run's trainer, without those that could not be kept.

    Raises:
        FileNotFoundError: it is not there.
    """
    if not is_saved(storage):
        raise FileNotFoundError(
            f"{storage.path(TRAINER_FILE)} is missing (a driver killed as it began has not written "
            "it yet), so the training function is not known: give train_loop_per_worker and the "
            "configs to restore(), or start anew."
        )
    kept = pickle.loads(storage.read(TRAINER_FILE))
    callbacks = [pickle.loads(callback) for callback in kept.pop("callbacks")]
    arguments = {name: pickle.loads(value) for name, value in kept.items()}
    if "run_config" in arguments:
        arguments["run_config"] = replace(arguments["run_config"], callbacks=callbacks)
    return arguments
