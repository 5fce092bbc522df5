"""The worker's side of a ``BaseTrainer`` subclass: recreates the trainer, and calls its methods."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lockstep.config import RunConfig, ScalingConfig
from lockstep.train.api import get_checkpoint
from lockstep.train.datasets import check_datasets

__all__ = [
    "SHARED_ARGUMENTS",
    "TrainingLoop",
    "arguments_of",
    "one_worker",
    "worker_run_config",
]

SHARED_ARGUMENTS = (
    "scaling_config",
    "run_config",
    "datasets",
    "metadata",
    "resume_from_checkpoint",
)
"""The arguments of every trainer. The others are a subclass's own."""


def arguments_of(cls: type, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """What a constructor was called with, by name; empty if the call does not fit."""
    try:
        bound = inspect.signature(cls.__init__).bind(None, *args, **options)  # type: ignore[misc]  # of whatever class it is
    except TypeError:
        return {}  # the constructor itself says what is wrong
    found: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


class TrainingLoop:
    """A training function: a trainer of a class, created in the worker, and its ``training_loop``.

    Args:
        trainer_class: a subclass of ``BaseTrainer``.
        shared: the ``SHARED_ARGUMENTS`` as the trainer had them.
        given: which of these its constructor was given.
    """

    def __init__(
        self, trainer_class: Any, shared: Mapping[str, Any], given: frozenset[str]
    ) -> None:
        self.trainer_class = trainer_class
        self.shared = dict(shared)
        self.given = given
        self.func = trainer_class.training_loop  # whose source code is shown in tracebacks

    def __call__(self, config: dict[str, Any]) -> Any:
        """Create the trainer and run it; ``config``: the arguments of its class."""
        shared, own = self._arguments(config)
        given = {name: value for name, value in shared.items() if name in self.given}
        trainer = self.trainer_class(**own, **given)
        for name, value in shared.items():
            setattr(trainer, name, value)
        checkpoint = get_checkpoint()
        if checkpoint is not None:
            trainer.resume_from_checkpoint = checkpoint
        trainer.setup()
        trainer.preprocess_datasets()
        return trainer.training_loop()

    def _arguments(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The shared arguments with what a trial has chosen of them, and the class's own."""
        own = dict(config)
        chosen = {name: own.pop(name) for name in SHARED_ARGUMENTS if name in own}
        shared = {**self.shared, **chosen}
        scaling = chosen.get("scaling_config")
        if isinstance(scaling, Mapping):
            shared["scaling_config"] = replace(self.shared["scaling_config"], **scaling)
        datasets = check_datasets({**self.shared["datasets"], **(chosen.get("datasets") or {})})
        made = {name: data() if callable(data) else data for name, data in datasets.items()}
        shared["datasets"] = check_datasets(made)
        return shared, own


def worker_run_config(config: RunConfig) -> RunConfig:
    """What a trainer in a worker sees of its ``RunConfig``: without what belongs to the driver."""
    kept = ("name", "failure_config", "checkpoint_config", "verbose")
    return RunConfig(**{name: getattr(config, name) for name in kept})


def one_worker(scaling: ScalingConfig) -> ScalingConfig:
    """One worker, for a trainer's own loop, with what each worker was to have."""
    return ScalingConfig(
        0 if scaling.num_workers == 0 else 1, scaling.use_gpu, scaling.resources_per_worker
    )
