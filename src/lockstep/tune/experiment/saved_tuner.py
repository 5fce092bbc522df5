"""A tuner stored with its experiment: the code and the configs for a restore, never state."""

from __future__ import annotations

import pickle
from collections.abc import Container
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lockstep.config import RunConfig
from lockstep.train.serialize import dump
from lockstep.train.trainer import DataParallelTrainer
from lockstep.tune.tune_config import TuneConfig

__all__ = ["load_tuner", "pack_tuner"]


def pack_tuner(
    trainable: Any, param_space: Any, tune_config: TuneConfig, run_config: RunConfig
) -> bytes:
    """The arguments of a Tuner, each pickled by itself; those that cannot be pickled are left out.

    Searcher and scheduler are pickled before their first use.

    Raises:
        TypeError: the trainable cannot be pickled.
    """
    like: Any = trainable
    if isinstance(trainable, DataParallelTrainer):
        like = trainable.train_loop_per_worker
        trainable = trainable.with_changes(run_config=RunConfig())
    like = getattr(like, "func", like)

    def packed(value: Any, name: str) -> bytes:
        return dump(value, name, by_value=True, like=like)

    stored: dict[str, Any] = {"trainable": packed(trainable, "trainable")}
    # The storage is where the experiment is, and a filesystem may hold credentials.
    not_stored: dict[str, Any] = {"storage_path": None, "storage_filesystem": None, "callbacks": ()}
    parts = {
        "param_space": param_space,
        "run_config": replace(run_config, **not_stored),
        "tune_config": replace(tune_config, search_alg=None, scheduler=None),
        "search_alg": tune_config.search_alg,
        "scheduler": tune_config.scheduler,
    }
    for name, value in parts.items():
        with suppress(TypeError):
            stored[name] = packed(value, name)
    callbacks = []
    for callback in run_config.callbacks:
        with suppress(TypeError):  # it holds a connection or a file; restore() takes a new one
            callbacks.append(packed(callback, "callback"))
    return pickle.dumps({**stored, "callbacks": callbacks})


def load_tuner(saved: bytes | None, where: str, given: Container[str]) -> dict[str, Any]:
    """The arguments that ``pack_tuner`` stored, without those that are ``given`` now.

    Raises:
        ValueError: an argument could not be stored, or cannot be loaded here; names it.
    """
    stored: dict[str, Any] = {} if saved is None else pickle.loads(saved)
    callbacks = stored.pop("callbacks", [])
    inner = {"search_alg": "tune_config", "scheduler": "tune_config"}
    loaded: dict[str, Any] = {}
    for name in (
        "trainable",
        "param_space",
        "tune_config",
        "search_alg",
        "scheduler",
        "run_config",
    ):
        argument = inner.get(name, name)
        if argument in given:
            continue
        if name not in stored:
            raise ValueError(
                f"Tuner.restore({where!r}): the experiment's {name} could not be stored; give "
                f"{argument}=… to restore()."
            )
        loaded[name] = _load(stored[name], argument, where)
    if "tune_config" in loaded:
        parts = {name: loaded.pop(name) for name in inner}
        loaded["tune_config"] = replace(loaded["tune_config"], **parts)
    if "run_config" in loaded:
        loaded["run_config"] = replace(
            loaded["run_config"],
            callbacks=[_load(callback, "run_config", where) for callback in callbacks],
        )
    return loaded


def _load(pickled: bytes, name: str, where: str) -> Any:
    try:
        return pickle.loads(pickled)
    except Exception as error:
        raise ValueError(
            f"Tuner.restore({where!r}): the experiment's {name} cannot be loaded here "
            f"({type(error).__name__}: {error}); give {name}=… to restore()."
        ) from error
