"""Backend: sets up a framework between workers before the training function runs."""

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
    "check_backend",
    "has_ray_backend",
    "loopback_interface",
    "machine_gpus",
    "only_config",
    "share_gpus",
    "without_unasked_gpus",
]


class Place(NamedTuple):
    """What a rank announces: its machine, the port that it serves (if any), and its GPUs."""

    address: str
    port: int | None = None
    gpus: str | None = None
    """The GPUs from the engine, in the form of ``CUDA_VISIBLE_DEVICES``."""
    secret: str | None = None
    """Known to the ranks of this attempt only."""


@dataclass(frozen=True)
class Wiring:
    """What every rank knows about the other ranks when it sets up the framework."""

    context: TrainContext
    announcements: tuple[Any, ...]
    """What each rank's ``announce`` returned; see ``Backend.needs_all_announcements``."""
    master_address: str
    """The address of rank 0."""
    use_gpu: bool


class Backend:
    """Sets up nothing. Subclasses are pickled to the workers; the driver uses ``preload``.

    Order in each worker: ``announce`` (before the other ranks are known), ``setup``, the training
    function, ``teardown`` (once every rank has finished; not after a failure).
    """

    preload: tuple[str, ...] = ()
    """Modules that the fork server imports once, so that every worker starts with them."""

    preload_later: tuple[str, ...] = ()
    """Modules that a function needs later than its first line: the first workers do not wait."""

    needs_all_announcements: bool = True
    """False: ``setup`` needs those of rank 0 and of its own machine only; the others are None, and
    the start of a group costs each worker the same, however many there are."""

    def environment(self) -> Mapping[str, str]:
        """Return variables that must be set before the framework is imported."""
        return {}

    def announce(self, rank: int, address: str) -> Any:
        """Return something picklable that the other ranks need, such as this rank's port."""
        return None

    def setup(self, wiring: Wiring) -> None:
        """Connect this rank to the others."""

    def teardown(self) -> None:
        """Undo ``setup``."""


class BackendConfig:
    """A user's settings for a framework; creates its :class:`Backend`."""

    def make_backend(self) -> Backend:
        """The backend to send to the workers."""
        return Backend()


_RAYS_HOOKS = ("on_start", "on_training_start", "on_shutdown")
_RAYS_PROPERTIES = ("backend_cls", "train_func_context")


def has_ray_backend(config: BackendConfig) -> bool:
    """Whether a config was written for Ray: it names its backend's class, and makes none."""
    kind = type(config)
    return hasattr(kind, "backend_cls") and kind.make_backend is BackendConfig.make_backend


def check_backend(given: BackendConfig | Backend) -> None:
    """Raise if the config, or the backend that it makes, has hooks of Ray's that nobody calls.

    Raises:
        TypeError: names the class, what it has, and what to implement.
    """
    if isinstance(given, BackendConfig) and has_ray_backend(given):
        return
    unused = _RAYS_PROPERTIES if isinstance(given, BackendConfig) else _RAYS_HOOKS
    found = [name for name in unused if hasattr(type(given), name)]
    if found:
        raise TypeError(
            f"{type(given).__qualname__}.{found[0]} is for Ray's worker groups, and lockstep does "
            "not call it. Override BackendConfig.make_backend() to return a lockstep.train.Backend "
            "with setup(wiring), which runs in each worker before the training function, and "
            "teardown()."
        )


Config = TypeVar("Config", bound=BackendConfig)


def only_config(kind: type[Config], **given: Config | None) -> Config:
    """Return the config that was given under one of its names, or a default one.

    Raises:
        ValueError: a config is given under more than one name.
        TypeError: the argument is no such config.
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
    """Hide the GPUs from workers of a run without ``use_gpu``.

    For frameworks that occupy every GPU they see. In the driver's own process GPUs stay visible: a
    process looks for them only once.
    """
    if scaling.use_gpu or scaling.num_workers == 0:
        return spec
    return replace(spec, environment={"CUDA_VISIBLE_DEVICES": "", **spec.environment})


def machine_gpus(places: Sequence[Place | None], rank: int) -> tuple[list[str], list[int]]:
    """Return the GPUs of all ranks on this rank's machine, and the indices of its own GPUs.

    For frameworks whose scripts use the local rank as the index of their GPU. Both lists are empty
    if the engine gave GPUs to no rank or only to some.
    """
    own = places[rank]
    assert own is not None
    given = {
        other: place.gpus.split(",") if place.gpus else []
        for other, place in enumerate(places)
        if place is not None and place.address == own.address
    }
    sliced = any(gpu.startswith("MIG-") for gpus in given.values() for gpu in gpus)
    if sliced or not all(given.values()):  # a process sees at most one slice of a GPU
        return [], []
    every = list(dict.fromkeys(gpu for gpus in given.values() for gpu in gpus))
    return every, [every.index(gpu) for gpu in given[rank]]


def share_gpus(places: Sequence[Place | None]) -> bool:
    """Whether two ranks have the same GPU of the same machine."""
    used = [
        (place.address, gpu)
        for place in filter(None, places)
        for gpu in (place.gpus.split(",") if place.gpus else ())
    ]
    return len(set(used)) < len(used)


def loopback_interface() -> str:
    """Return the name of this machine's loopback interface."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")
