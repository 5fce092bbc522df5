"""Backend: what a framework needs set up between workers before the training function runs."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from lockstep.config import ScalingConfig
from lockstep.engine.base import GroupSpec
from lockstep.train.context import TrainContext

__all__ = [
    "Backend",
    "BackendConfig",
    "Place",
    "Wiring",
    "loopback_interface",
    "machine_gpus",
    "only_config",
    "without_unasked_gpus",
]


class Place(NamedTuple):
    """What a rank announces: its machine, the port it serves, if it does, and its GPUs."""

    address: str
    port: int | None = None
    gpus: str | None = None
    """Which the engine gave it, as ``CUDA_VISIBLE_DEVICES`` has them."""


@dataclass(frozen=True)
class Wiring:
    """What every rank knows about the others when it sets the framework up."""

    context: TrainContext
    announcements: tuple[Any, ...]
    """What each rank's ``announce`` returned."""
    master_address: str
    """Where rank 0 can be reached."""
    use_gpu: bool


class Backend:
    """Sets nothing up. Subclasses are pickled to the workers; ``preload`` is used by the driver.

    Order in each worker: ``announce`` (before the others are known), ``setup``, the training
    function, ``teardown`` (when every rank has finished; not after a failure).
    """

    preload: tuple[str, ...] = ()
    """Modules the fork server imports, once, so that workers start with them."""

    def environment(self) -> Mapping[str, str]:
        """Variables that must be set before the framework is imported."""
        return {}

    def announce(self, rank: int, address: str) -> Any:
        """Something picklable the other ranks need, e.g. a port that this rank listens on."""
        return None

    def setup(self, wiring: Wiring) -> None:
        """Wire this rank to the others."""

    def teardown(self) -> None:
        """Undo ``setup``."""


class BackendConfig:
    """What a user configures about a framework; makes its :class:`Backend`."""

    def make_backend(self) -> Backend:
        """The backend to send to the workers."""
        return Backend()


Config = TypeVar("Config", bound=BackendConfig)


def only_config(kind: type[Config], **given: Config | None) -> Config:
    """The config given under one of its names; a plain one where none is.

    Raises:
        ValueError: it is given under more than one.
        TypeError: it is something else.
    """
    chosen = {name: config for name, config in given.items() if config is not None}
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)} are names of one argument; give one of them.")
    for name, config in chosen.items():
        if not isinstance(config, kind):
            raise TypeError(f"{name}={config!r}: expected a {kind.__name__}.")
        return config
    return kind()


def without_unasked_gpus(spec: GroupSpec, scaling: ScalingConfig) -> GroupSpec:
    """For frameworks that take every GPU they see: none is seen unless the run asked for some.

    In this very process they stay visible, since a process looks for them only once.
    """
    if scaling.use_gpu or scaling.num_workers == 0:
        return spec
    return replace(spec, environment={"CUDA_VISIBLE_DEVICES": "", **spec.environment})


def machine_gpus(places: Sequence[Place], rank: int) -> tuple[list[str], list[int]]:
    """The GPUs of all ranks on this rank's machine, and which of them are its own.

    For frameworks whose scripts take the GPU that their local rank is the index of. Nothing where
    the engine gave out none.
    """
    machine = places[rank].address
    given = {
        other: place.gpus.split(",") if place.gpus else []
        for other, place in enumerate(places)
        if place.address == machine
    }
    sliced = any(gpu.startswith("MIG-") for gpus in given.values() for gpu in gpus)
    if sliced or not all(given.values()):  # a process sees one slice of a GPU, at most
        return [], []
    every = list(dict.fromkeys(gpu for gpus in given.values() for gpu in gpus))
    return every, [every.index(gpu) for gpu in given[rank]]


def loopback_interface() -> str:
    """The name of this machine's loopback interface."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")
