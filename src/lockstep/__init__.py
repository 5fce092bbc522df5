"""lockstep: run a training function on N workers, in lockstep.

``lockstep.train`` is where to begin. Subpackages are loaded when they are first used.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping

TYPE_CHECKING = False  # not typing's: its import is a tenth of the start of ``lockstep run``
if TYPE_CHECKING:
    from typing import Any

    from lockstep.core import (
        InitContext,
        ObjectRef,
        available_resources,
        cluster_resources,
        get,
        get_gpu_ids,
        get_runtime_context,
        nodes,
        put,
        wait,
    )

__version__ = "0.1.0"

__all__ = [
    "ObjectRef",
    "__version__",
    "available_resources",
    "cluster_resources",
    "get",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "nodes",
    "put",
    "shutdown",
    "wait",
]

_SUBPACKAGES = (
    "air",
    "cloudpickle",
    "data",
    "exceptions",
    "runtime_context",
    "runtime_env",
    "train",
    "tune",
    "types",
    "util",
)
_FACTS = {
    "ObjectRef",
    "available_resources",
    "cluster_resources",
    "get",
    "get_gpu_ids",
    "get_runtime_context",
    "nodes",
    "put",
    "wait",
}
"""What ``lockstep.core`` has."""

_OF_RAY_CORE = (
    "ActorClassID",
    "ActorID",
    "JobID",
    "NodeID",
    "ObjectID",
    "ObjectRefGenerator",
    "TaskID",
    "WorkerID",
    "actor",
    "cancel",
    "client",
    "get_actor",
    "java_actor_class",
    "java_function",
    "kill",
    "method",
    "remote",
    "timeline",
)
"""The names of ``ray`` that need Ray's own Core: tasks and actors."""

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
) -> InitContext:
    """Choose the settings of later runs of this process. Optional; starts nothing.

    A second call changes only the given settings; ``shutdown()`` forgets all of them.

    Args:
        engine: ``"local"`` (the default): processes on this machine; ``"ray"``: on a Ray cluster.
        runtime_env: ``{"env_vars": {"NAME": "value"}}``: set in every worker before your modules
            are imported there. With the engine ``"ray"`` also what ``ray.init`` takes there, such
            as ``working_dir``, ``py_modules`` or ``pip``.
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
    from lockstep.core import InitContext

    return InitContext()


def is_initialized() -> bool:
    """Whether ``init()`` was called. Runs do not need it."""
    from lockstep import runtime

    return runtime.is_configured()


def shutdown(_exiting_interpreter: bool = False, wait_for_processes: bool = True) -> None:
    """Forget ``init()`` and end the warm processes; the next run starts new ones.

    The arguments are Ray's: the processes are always waited for.
    """
    from lockstep import runtime

    runtime.reset()


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"lockstep.{name}")
    if name in _FACTS:
        return getattr(importlib.import_module("lockstep.core"), name)
    if name in _OF_RAY_CORE:
        from lockstep.core import of_ray_core
        from lockstep.missing import raise_missing_name

        try:
            return of_ray_core(name)
        except LookupError as error:
            raise_missing_name("lockstep", name, error.args[0])
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES, *_FACTS})
