"""What Ray Core says to scripts about their cluster, as facts of this machine; values by reference.

On the engine ``ray`` each of these is Ray's own. Tasks and actors are always Ray's own: elsewhere
they are an error that says so.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from types import TracebackType
from typing import Any

from lockstep import ray_names, runtime, settings
from lockstep.engine.registry import choose_engine
from lockstep.engine.resources import available_cpus, get_node_ip_address, visible_gpus

__all__ = [
    "InitContext",
    "ObjectRef",
    "RuntimeContext",
    "available_resources",
    "cluster_resources",
    "get",
    "get_gpu_ids",
    "get_node_ip_address",
    "get_runtime_context",
    "nodes",
    "of_ray_core",
    "put",
    "use_ray_core",
    "wait",
]


_NOT_INSTALLED = (
    "it belongs to Ray itself, and Ray is not installed. After pip install 'lockstep-train[ray]' "
    "the script runs with Ray's own Core, on the engine 'ray'"
)


class ObjectRef:
    """A value that was put. It travels with its value, wherever it is pickled.

    Here ``get`` returns the object itself, not a copy.
    """

    __slots__ = ("_id", "_value")

    def __init__(self, value: Any) -> None:
        self._id = uuid.uuid4().hex
        self._value = value

    def hex(self) -> str:
        """The reference's number, in hexadecimal."""
        return self._id

    def __reduce__(self) -> tuple[Any, ...]:
        if _on_ray():  # an argument of a task: Ray gives a task the value, too
            return _same, (self._value,)
        return ObjectRef, (self._value,)

    def __repr__(self) -> str:
        return f"ObjectRef({self._id})"


def _same(value: Any) -> Any:
    return value


def put(value: Any) -> Any:
    """A reference to a value, for ``get``, for a config, or for ``tune.with_parameters``."""
    if isinstance(value, ObjectRef):
        raise TypeError("put(ObjectRef): the argument is a reference already; use it as it is.")
    return _ray().put(value) if _on_ray() else ObjectRef(value)


def get(object_refs: Any, *, timeout: float | None = None) -> Any:
    """The value of a reference, or the values of a list of references.

    Args:
        object_refs: what ``put`` returned, or a list of such.
        timeout: of Ray's own references; a value that was put here is there at once.
    """
    if isinstance(object_refs, ObjectRef):
        return object_refs._value
    if isinstance(object_refs, list) and all(isinstance(ref, ObjectRef) for ref in object_refs):
        return [ref._value for ref in object_refs]
    if _on_ray():
        if isinstance(object_refs, list):
            return [get(ref, timeout=timeout) for ref in object_refs]
        return _ray().get(object_refs, timeout=timeout)
    kind = type(object_refs).__name__
    raise ValueError(
        f"get({kind}): expected an ObjectRef, which put() returns, or a list of ObjectRefs."
    )


def wait(
    object_refs: list[Any],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[Any], list[Any]]:
    """The references whose values are there, ``num_returns`` of them at most, and the others."""
    mine = all(isinstance(ref, ObjectRef) for ref in object_refs)
    if not mine and _on_ray():
        ready: tuple[list[Any], list[Any]] = _ray().wait(
            object_refs, num_returns=num_returns, timeout=timeout, fetch_local=fetch_local
        )
        return ready
    if not isinstance(object_refs, list) or not mine:
        raise TypeError(f"wait({object_refs!r}): expected a list of ObjectRefs.")
    if not 0 < num_returns <= len(object_refs):
        raise ValueError(
            f"wait(num_returns={num_returns}): expected 1 to {len(object_refs)}, the number of "
            "references."
        )
    return object_refs[:num_returns], object_refs[num_returns:]


def cluster_resources() -> dict[str, float]:
    """The CPUs, the GPUs and the memory of this machine, within the limits of ``init()``."""
    if _on_ray():
        return dict(_connected().cluster_resources())
    limits = runtime.current()
    cpus = available_cpus() if limits.num_cpus is None else limits.num_cpus
    gpus = len(visible_gpus()) if limits.num_gpus is None else limits.num_gpus
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "CPU": float(cpus),
        **({"GPU": float(gpus)} if gpus else {}),
        "memory": float(memory),
        "node:__internal_head__": 1.0,
        f"node:{get_node_ip_address()}": 1.0,
    }


def available_resources() -> dict[str, float]:
    """The same: runs take turns on this machine's CPUs rather than wait for them."""
    return dict(_connected().available_resources()) if _on_ray() else cluster_resources()


def nodes() -> list[dict[str, Any]]:
    """This machine, as the only node."""
    if _on_ray():
        return list(_connected().nodes())
    address = get_node_ip_address()
    return [
        {
            "NodeID": _node_id(),
            "Alive": True,
            "alive": True,
            "NodeManagerAddress": address,
            "NodeManagerHostname": socket.gethostname(),
            "NodeName": address,
            "Resources": cluster_resources(),
            "Labels": {},
        }
    ]


def get_gpu_ids() -> list[Any]:
    """The GPUs that this process may use: in a worker its own."""
    return [int(gpu) if gpu.isdigit() else gpu for gpu in visible_gpus()]


class RuntimeContext:
    """Where this process is: ids of this machine, of this job and of this process."""

    @property
    def node_id(self) -> str:
        """The same as ``get_node_id()``."""
        return self.get_node_id()

    @property
    def job_id(self) -> str:
        """The same as ``get_job_id()``."""
        return self.get_job_id()

    @property
    def namespace(self) -> str:
        """Always empty: there are no actors to look up."""
        return ""

    @property
    def gcs_address(self) -> str:
        """This machine's address: there is no server."""
        return get_node_ip_address()

    @property
    def runtime_env(self) -> dict[str, Any]:
        """What ``init(runtime_env=…)`` has set."""
        env_vars = dict(runtime.current().env_vars)
        return {"env_vars": env_vars} if env_vars else {}

    def get_runtime_env_string(self) -> str:
        """The names of the variables that ``init(runtime_env=…)`` has set, not their values."""
        return str(dict.fromkeys(runtime.current().env_vars, "…"))

    def get_node_id(self) -> str:
        """A number of this machine, the same until it is started again."""
        return _node_id()

    def get_job_id(self) -> str:
        """A number of this process."""
        return f"{os.getpid():08x}"

    def get_worker_id(self) -> str:
        """A number of this process on this machine."""
        return hashlib.sha256(f"{_node_id()}{os.getpid()}".encode()).hexdigest()[:56]

    def get_task_id(self) -> None:
        """None: this is no task."""

    def get_task_name(self) -> None:
        """None: this is no task."""

    def get_actor_id(self) -> None:
        """None: this is no actor."""

    def get_actor_name(self) -> None:
        """None: this is no actor."""

    def get_placement_group_id(self) -> None:
        """None: there are no placement groups."""

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Always False: this is no actor."""
        return False

    def get_assigned_resources(self) -> dict[str, float]:
        """The CPUs and GPUs of this process."""
        return {name: n for name, n in cluster_resources().items() if name in ("CPU", "GPU")}

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """The GPUs that this process may use."""
        return {"GPU": [str(gpu) for gpu in get_gpu_ids()]}

    def get(self) -> dict[str, Any]:
        """The ids in a dict."""
        return {"node_id": self.node_id, "job_id": self.job_id, "namespace": self.namespace}


def get_runtime_context() -> Any:
    """Where this process is."""
    return _connected().get_runtime_context() if _on_ray() else RuntimeContext()


class InitContext(Mapping[str, Any]):
    """What ``init()`` returns: where this process is. A context manager that calls ``shutdown``."""

    dashboard_url = ""
    """Empty: Ray's dashboard does not run."""
    python_version = platform.python_version()
    ray_version = ray_names.RAY_VERSION

    @property
    def address_info(self) -> dict[str, Any]:
        """This machine's address and number."""
        return {"node_ip_address": get_node_ip_address(), "node_id": _node_id(), "address": "local"}

    def disconnect(self) -> None:
        """The same as ``shutdown()``."""
        runtime.reset()

    def __getitem__(self, name: str) -> Any:
        return self.address_info[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.address_info)

    def __len__(self) -> int:
        return len(self.address_info)

    def __enter__(self) -> InitContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.disconnect()

    def __repr__(self) -> str:
        return f"InitContext({get_node_ip_address()})"


def of_ray_core(name: str) -> Any:
    """Ray's own ``name``, on the engine ``ray``. A script that imports ``ray`` changes to it.

    Raises:
        LookupError: Ray is not installed, or another engine is used; its text says what to do.
    """
    if not _on_ray():
        if not settings.ray_names():
            raise LookupError(
                "tasks and actors are Ray's: call lockstep.init(engine='ray') first; or use "
                "train.DataParallelTrainer, which runs a function on several workers, or "
                "tune.Tuner, which runs several functions at a time"
            )
        try:
            use_ray_core(f"ray.{name}")
        except ImportError:
            raise LookupError(_NOT_INSTALLED) from None
    return getattr(_ray(), name)


def use_ray_core(name: str) -> None:
    """Change to the engine ``ray``, because a script needs ``name`` of Ray's own.

    Raises:
        ImportError: Ray is not installed; says so.
    """
    if _on_ray():
        ray_names.use_ray_itself()
        return
    if not ray_names.ray_is_installed():
        raise ImportError(f"{name} cannot be imported: {_NOT_INSTALLED}.", name=name)
    was_initialized = runtime.is_configured()
    runtime.configure("ray", None, None, None)
    ray_names.use_ray_itself()
    if was_initialized:  # Ray starts by itself at the first task otherwise
        _connected()


def _on_ray() -> bool:
    return runtime.current().engine == "ray"


def _ray() -> Any:
    return ray_names.use_ray_itself()


def _connected() -> Any:
    """Ray, connected as the engine connects."""
    from lockstep.engine.ray import RayEngine

    engine = choose_engine("ray")
    assert isinstance(engine, RayEngine)
    engine.connect()
    return _ray()


@cache
def _node_id() -> str:
    """Of the host's name and its number of this boot, where there is one."""
    boot = ""
    if os.path.exists("/proc/sys/kernel/random/boot_id"):
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read()
    return hashlib.sha256(f"{socket.gethostname()}{boot}".encode()).hexdigest()[:56]
