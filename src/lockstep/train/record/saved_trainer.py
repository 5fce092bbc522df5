"""A trainer kept with its run, so that the run can be restored without the script that began it.

What the run has achieved is in the journal, as plain JSON; this is only the code and the configs.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockstep.records import newest_run
from lockstep.run_layout import JOURNAL_FILE, TRAINER_FILE
from lockstep.storage import Storage, open_storage
from lockstep.train.serialize import dump

if TYPE_CHECKING:
    import pyarrow.fs

    from lockstep.train.trainer import DataParallelTrainer

__all__ = ["is_saved", "run_storage", "save_trainer", "saved_trainer"]

_RESTORE_ARGUMENTS = (
    "train_loop_per_worker",
    "train_loop_config",
    "scaling_config",
    "run_config",
    "datasets",
)
"""What ``restore()`` accepts in place of what was kept."""

DATASET_BYTES = 64 << 20
"""How much a dataset may hold in memory to be kept with the run."""


def save_trainer(trainer: DataParallelTrainer, storage: Storage) -> None:
    """Keep the trainer's arguments, each pickled by itself.

    Callbacks that cannot be are left out, and so is a run config whose ``stop`` cannot be, and a
    dataset that cannot be or holds too much in memory.
    """
    arguments = {
        "train_loop_per_worker": trainer.train_loop_per_worker,
        "train_loop_config": trainer.train_loop_config,
        "backend_config": trainer.backend_config,
        "dataset_config": trainer.dataset_config,
        "scaling_config": trainer.scaling_config,
        "metadata": trainer.metadata,
        "resume_from_checkpoint": trainer.resume_from_checkpoint,
    }
    function = trainer.train_loop_per_worker
    kept = {
        name: dump(value, name, by_value=True, like=function) for name, value in arguments.items()
    }
    # Its place is the run's own, and a filesystem may hold credentials.
    run_config = replace(
        trainer.run_config, callbacks=(), storage_filesystem=None, storage_path=None
    )
    with suppress(TypeError):
        kept["run_config"] = dump(run_config, "run_config", by_value=True, like=function)
    callbacks = []
    for callback in trainer.run_config.callbacks:
        try:
            callbacks.append(dump(callback, "callback", by_value=True, like=function))
        except TypeError:
            continue  # it holds a connection or a file; give it to restore() again
    datasets: dict[str, bytes | None] = {}
    for name, dataset in trainer.datasets.items():
        datasets[name] = None
        if not callable(dataset) and dataset.memory_bytes() > DATASET_BYTES:
            continue
        with suppress(TypeError):  # a function that no worker needs may hold a connection
            pickled = dump(dataset, f"datasets[{name!r}]", by_value=True, like=function)
            datasets[name] = pickled if len(pickled) <= DATASET_BYTES else None
    kept_apart = {"callbacks": callbacks, "datasets": datasets}
    storage.write(TRAINER_FILE, pickle.dumps({**kept, **kept_apart}))


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


def saved_trainer(storage: Storage, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a run's trainer, without those that could not be kept and those ``given``.

    Of datasets those that are not given are added to those that are.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: one of them cannot be loaded, or a dataset was not kept; names it.
    """
    if not is_saved(storage):
        raise FileNotFoundError(
            f"{storage.path(TRAINER_FILE)} is missing (a driver killed as it began has not written "
            "it yet), so the training function is not known: give train_loop_per_worker and the "
            "configs to restore(), or start a new run."
        )
    kept = pickle.loads(storage.read(TRAINER_FILE))
    callbacks = kept.pop("callbacks")
    datasets = dict(given.get("datasets") or {})
    for name, pickled in kept.pop("datasets", {}).items():
        if name not in datasets:
            datasets[name] = _load_dataset(pickled, name, storage)
    arguments = {
        name: _load(value, name, storage) for name, value in kept.items() if name not in given
    }
    arguments["datasets"] = datasets
    if "run_config" in arguments:
        arguments["run_config"] = replace(
            arguments["run_config"],
            callbacks=[_load(callback, "run_config", storage) for callback in callbacks],
        )
    return arguments


def _load_dataset(pickled: bytes | None, name: str, storage: Storage) -> Any:
    if pickled is None:
        raise ValueError(
            f"restore({storage.uri!r}): the run's dataset {name!r} could not be kept with it (too "
            "large in memory, or a function that cannot be pickled); give "
            f"datasets={{{name!r}: …}} to restore()."
        )
    return _load(pickled, "datasets", storage)


def _load(pickled: bytes, name: str, storage: Storage) -> Any:
    try:
        return pickle.loads(pickled)
    except Exception as error:
        cure = f"give {name}=… to restore()"
        if name not in _RESTORE_ARGUMENTS:
            cure = "make what it needs importable"
        raise ValueError(
            f"restore({storage.uri!r}): the run's {name} cannot be loaded here "
            f"({type(error).__name__}: {error}); {cure}."
        ) from error
