"""lockstep: run a training function on N workers, in lockstep.

``lockstep.train`` is where to begin. Subpackages are loaded when they are first used.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

__all__ = ["__version__", "init", "is_initialized", "shutdown"]

_SUBPACKAGES = ("air", "data", "exceptions", "train", "tune")

_TASKS_AND_ACTORS = ("available_resources", "cluster_resources", "get", "put", "remote", "wait")

# Arguments of Ray's init() about a cluster, and what to use instead.
_NO_CLUSTER = "there is no cluster, a run is processes of this machine"
_OF_A_CLUSTER = {
    "local_mode": "use ScalingConfig(num_workers=0) to train in this process",
    "log_to_driver": "use RunConfig(verbose=0) for silence",
    **dict.fromkeys(
        (
            "configure_logging",
            "dashboard_host",
            "dashboard_port",
            "include_dashboard",
            "job_config",
            "labels",
            "logging_config",
            "logging_format",
            "logging_level",
            "namespace",
            "object_store_memory",
            "resources",
        ),
        _NO_CLUSTER,
    ),
}


def init(
    address: str | None = None,
    *,
    engine: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    ignore_reinit_error: bool = False,
    **of_a_cluster: Any,
) -> None:
    """Choose the settings of later runs of this process. Optional; starts nothing.

    A second call changes only the given settings; ``shutdown()`` forgets all of them.

    Args:
        engine: ``"local"`` (the default): processes on this machine; ``"ray"``: on a Ray cluster.
        runtime_env: ``{"env_vars": {"NAME": "value"}}``: set in every worker before your modules
            are imported there.
        num_cpus, num_gpus: how much of this machine elastic runs may use. A call with more, during
            a run, lets the run grow.
        address: with the engine ``"ray"``: the cluster, ``"auto"`` or ``"HOST:PORT"``; without it
            Ray's own default. A Ray that this process has initialised already is used as it is.
        ignore_reinit_error, of_a_cluster: accepted for scripts that were written for Ray.
            An argument that would set up a cluster does nothing, with a warning; so does
            ``address`` with another engine.
    """
    from lockstep import runtime
    from lockstep.engine.registry import ENGINES

    if engine is not None and engine not in ENGINES:
        raise ValueError(f"init(engine={engine!r}): choose one of {', '.join(ENGINES)}.")
    for name in of_a_cluster:
        if name not in _OF_A_CLUSTER:
            raise TypeError(f"init() got an unexpected keyword argument {name!r}")
    runtime.configure(engine, runtime_env, num_cpus, num_gpus, address)
    if runtime.current().engine == "ray":
        address = None  # it has an effect there
    for name, value in {"address": address, **of_a_cluster}.items():
        if value in (None, "local") or value is (name == "log_to_driver"):
            continue  # the value asks for what happens anyway
        text = f"init({name}={value!r}) does nothing: {_OF_A_CLUSTER.get(name, _NO_CLUSTER)}."
        warnings.warn(text, UserWarning, stacklevel=2)


def is_initialized() -> bool:
    """Whether ``init()`` was called. Runs do not need it."""
    from lockstep import runtime

    return runtime.is_configured()


def shutdown() -> None:
    """Forget ``init()`` and end the warm processes; the next run starts new ones."""
    from lockstep import runtime

    runtime.reset()


def __getattr__(name: str) -> ModuleType:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"lockstep.{name}")
    if name in _TASKS_AND_ACTORS:
        raise AttributeError(
            f"lockstep.{name} does not exist: lockstep has no tasks, actors or clusters; "
            "train.DataParallelTrainer runs a function on several workers, tune.Tuner several "
            "functions at a time."
        )
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES})
