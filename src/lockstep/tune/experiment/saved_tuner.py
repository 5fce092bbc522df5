"""A tuner stored with its experiment: the code and the configs for a restore, never state."""

from __future__ import annotations

import pickle
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from lockstep.config import RunConfig
from lockstep.redact import redacted
from lockstep.train.function.sources import used_sources
from lockstep.train.record.kept_objects import KeptObjects, pickle_each, pickle_run_config
from lockstep.train.trainer import DataParallelTrainer
from lockstep.tune.tune_config import TuneConfig

__all__ = ["load_sources", "load_tuner", "pack_tuner"]

_ARGUMENTS = {
    "trainable": "trainable",
    "param_space": "param_space",
    "tune_config": "tune_config",
    "search_alg": "tune_config",
    "scheduler": "tune_config",
    "run_config": "run_config",
}
"""Stored object → the argument of ``restore()`` that replaces it."""


def pack_tuner(
    trainable: Any,
    param_space: Any,
    tune_config: TuneConfig,
    run_config: RunConfig,
    sources: Mapping[str, str],
) -> bytes:
    """The arguments of a Tuner, each pickled by itself; those that cannot be pickled are left out.

    Searcher and scheduler are pickled before their first use. ``sources`` is the source code of the
    trainable.

    Raises:
        TypeError: the trainable cannot be pickled.
    """
    like: Any = trainable
    if isinstance(trainable, DataParallelTrainer):
        like = trainable.train_loop_per_worker
        config = redacted(trainable.train_loop_config)
        trainable = trainable.with_changes(run_config=RunConfig(), train_loop_config=config)
    like = getattr(like, "func", like)
    parts = {
        "param_space": param_space,
        "tune_config": replace(tune_config, search_alg=None, scheduler=None),
        "search_alg": tune_config.search_alg,
        "scheduler": tune_config.scheduler,
    }
    stored = {
        **pickle_each({"trainable": trainable}, like),
        **pickle_each(parts, like, skip_unpicklable=True),
        **pickle_run_config(run_config, like),
        "sources": used_sources(sources, like),
    }
    return pickle.dumps(stored)


def load_sources(saved: bytes | None) -> dict[str, str]:
    """The source code of the trainable, as ``pack_tuner`` was given it."""
    sources: dict[str, str] = {} if saved is None else pickle.loads(saved)["sources"]
    return sources


def load_tuner(saved: bytes | None, where: str, given: Container[str]) -> dict[str, Any]:
    """The arguments that ``pack_tuner`` stored, without those that are ``given`` now.

    Raises:
        ValueError: an argument could not be stored, or cannot be loaded here; names it.
    """
    pickled: dict[str, Any] = {} if saved is None else pickle.loads(saved)
    owner = f"Tuner.restore({where!r}): the experiment's"
    stored = KeptObjects(pickled, owner, _ARGUMENTS.values())
    loaded: dict[str, Any] = {}
    for name, argument in _ARGUMENTS.items():
        if argument in given:
            continue
        if name not in pickled:
            raise ValueError(f"{owner} {name} could not be stored; give {argument}=… to restore().")
        if name == "run_config":
            loaded[name] = stored.load_run_config()
        elif name == argument:
            loaded[name] = stored.load(pickled[name], argument)
        else:  # a part of an argument that is loaded already
            part = stored.load(pickled[name], argument)
            loaded[argument] = replace(loaded[argument], **{name: part})
    return loaded
