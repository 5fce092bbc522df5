"""This machine: its address, its CPUs and GPUs, and which of them each worker may use."""

from __future__ import annotations

import contextlib
import glob
import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile

from lockstep import runtime, settings
from lockstep.engine.base import GroupSpec
from lockstep.errors import InsufficientResourcesError

__all__ = [
    "ACCELERATOR",
    "BlasThreads",
    "available_cpus",
    "check_fits",
    "get_node_ip_address",
    "room_for",
    "server_environment",
    "shared_resources",
    "visible_gpus",
    "worker_environment",
]

ACCELERATOR = "accelerator_type:"
"""Ray has a resource of this name and the type on each node with such an accelerator."""
_ROUNDING = 1e-9
_BLAS_SETTERS = [
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("", "scipy_")
    for suffix in ("", "64_")
]


LONGEST_VALUE = 1 << 16
LARGEST_ENVIRONMENT = 1 << 20
"""In bytes. Linux takes 128 kB for one variable, and for all together a quarter of the stack."""


def available_cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def get_node_ip_address() -> str:
    """This machine's address as others see it. Connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def visible_gpus(environment: Mapping[str, str] | None = None) -> list[str]:
    """The NVIDIA GPUs a worker may use, as ``CUDA_VISIBLE_DEVICES`` would name them.

    ``environment`` overrides this process's. GPUs are counted by their device files, because a
    process that has used CUDA cannot be forked safely.
    """
    present = sorted(
        int(path.removeprefix("/dev/nvidia"))
        for path in glob.glob("/dev/nvidia[0-9]*")
        if path.removeprefix("/dev/nvidia").isdigit()
    )
    chosen = (environment or {}).get("CUDA_VISIBLE_DEVICES", settings.cuda_visible_devices())
    if chosen is None:
        # CUDA numbers the visible devices from 0, whatever the numbers of the files are.
        return [str(index) for index in range(len(present))]
    if not present:
        return []
    names = [name.strip() for name in chosen.split(",")]
    # CUDA ignores every name after the first one that is not a device.
    return list(takewhile(lambda name: _may_be_device(name, len(present)), names))


def _may_be_device(name: str, count: int) -> bool:
    try:
        return 0 <= int(name) < count
    except ValueError:
        return bool(name)  # a UUID


def check_fits(spec: GroupSpec) -> list[str]:
    """Check that the requested resources exist; return warnings of what has no effect here.

    Raises:
        InsufficientResourcesError: this machine has fewer GPUs, or not such a resource.
    """
    have = len(visible_gpus(spec.environment)) if spec.gpus_per_worker else 0
    if spec.gpus_per_worker and spec.size > _workers_on(have, spec.gpus_per_worker):
        each = spec.gpus_per_worker
        need = math.ceil(spec.size / _workers_on(1, each)) if each < 1 else spec.size * each
        raise InsufficientResourcesError(
            f"{spec.size} worker(s) with {spec.gpus_per_worker:g} GPU(s) each need {need:g}, but "
            f"this machine has {have} visible; lower num_workers or set use_gpu=False."
        )
    for name, amount in spec.resources.items():
        if amount and not name.startswith(ACCELERATOR):
            raise InsufficientResourcesError(
                f"ScalingConfig(resources_per_worker={{{name!r}: {amount:g}}}): this machine has "
                "CPUs and GPUs only; a Ray cluster (lockstep.init(engine='ray')) may have others."
            )
    warnings = [
        f"ScalingConfig({name}={value!r}) does nothing: all workers are on this machine; it places "
        "them on a Ray cluster."
        for name, value in _asked_of_a_cluster(spec)
    ]
    cpus = available_cpus()
    if spec.size > cpus:
        warnings.append(
            f"{spec.size} workers share {cpus} CPU(s): this works, but they take turns; "
            "lower ScalingConfig(num_workers=…) for speed."
        )
    return warnings


def _asked_of_a_cluster(spec: GroupSpec) -> Iterator[tuple[str, object]]:
    if spec.placement_strategy != "PACK":
        yield "placement_strategy", spec.placement_strategy
    for name in spec.resources:
        if name.startswith(ACCELERATOR):
            yield "accelerator_type", name.removeprefix(ACCELERATOR)
    if any(spec.label_selectors):
        yield "label_selector", [dict(one) for one in spec.label_selectors]


def shared_resources() -> tuple[float, tuple[str, ...]]:
    """The CPUs and GPUs of this machine, within ``lockstep.init``'s limits."""
    limits = runtime.current()
    gpus = visible_gpus(limits.env_vars)
    if limits.num_gpus is not None:
        gpus = gpus[: limits.num_gpus]
    cpus = available_cpus() if limits.num_cpus is None else limits.num_cpus
    return float(cpus), tuple(gpus)


def room_for(spec: GroupSpec) -> int:
    """How many workers like ``spec``'s fit into ``lockstep.init``'s limits and this machine."""
    limits = runtime.current()
    cpus = available_cpus() if limits.num_cpus is None else limits.num_cpus
    room = int(cpus // (spec.cpus_per_worker or 1))
    if spec.gpus_per_worker:
        gpus = len(visible_gpus(spec.environment))
        gpus = gpus if limits.num_gpus is None else min(gpus, limits.num_gpus)
        room = min(room, _workers_on(gpus, spec.gpus_per_worker))
    return room


def _workers_on(gpus: float, each: float) -> int:
    """How many workers fit on these GPUs. A worker's part lies on one GPU: 0.4 fits twice."""
    return int(gpus) * int(1 / each + _ROUNDING) if each < 1 else int(gpus // each)


def worker_environment(spec: GroupSpec, rank: int) -> dict[str, str]:
    """The user's variables for a worker, with its thread count and its GPUs."""
    environment = dict(spec.environment)
    if settings.user_thread_setting(spec.environment) is None:
        share = spec.cpus_per_worker or available_cpus() / spec.size
        environment["OMP_NUM_THREADS"] = str(max(1, int(share)))
    if spec.gpus_per_worker:
        devices: Sequence[str] = spec.gpus or ()
        if spec.gpus is None:
            shared_by = max(1, _workers_on(1, spec.gpus_per_worker))
            devices = [gpu for gpu in visible_gpus(spec.environment) for _ in range(shared_by)]
        count = math.ceil(spec.gpus_per_worker)
        mine = devices[rank * count : (rank + 1) * count]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    return environment


def server_environment(spec: GroupSpec) -> dict[str, str]:
    """A fork server's environment. The server computes nothing: OpenBLAS needs no threads.

    Long values are left out. They may be too long for a new process, but not for its forks.
    """
    environment = settings.child_environment(spec.environment)
    if settings.user_thread_setting(spec.environment) is None:
        environment["OPENBLAS_NUM_THREADS"] = "1"
    sizes = {name: len(os.fsencode(value)) for name, value in environment.items()}
    kept: dict[str, str] = {}
    total = 0
    for name in sorted(sizes, key=sizes.__getitem__):
        total += sizes[name] + len(name) + 10
        if sizes[name] > LONGEST_VALUE or total > LARGEST_ENVIRONMENT:
            break
        kept[name] = environment[name]
    return kept


class BlasThreads:
    """Sets how many threads the OpenBLAS libraries of this process (NumPy's, SciPy's) use.

    OpenBLAS reads its variables when it is loaded, so a worker's own variables come too late. The
    server sets the number before the fork: the worker inherits it, and starts the threads when
    it needs them. If the worker set the number itself, it would start all threads at once.
    """

    def __init__(self) -> None:
        self._setters: list[Callable[[int], object]] | None = None
        self._threads = min(_blas_threads(settings.child_environment({})), available_cpus())

    def follow(self, environment: Mapping[str, str]) -> None:
        """Set the number of threads that these variables ask for."""
        threads = _blas_threads(environment)
        if threads != self._threads:
            self._threads = threads
            if self._setters is None:  # looked for when they are needed: that takes milliseconds
                self._setters = _blas_thread_setters()
            for set_threads in self._setters:
                set_threads(threads)


def _blas_threads(environment: Mapping[str, str]) -> int:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        first = environment.get(name, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return int(first)
    return available_cpus()


def _blas_thread_setters() -> list[Callable[[int], object]]:
    import ctypes

    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in file if "openblas" in line}
    except OSError:  # not on Linux
        return []
    found: list[Callable[[int], object]] = []
    for path in sorted(paths):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            found += [getattr(library, name) for name in _BLAS_SETTERS if hasattr(library, name)]
    return found
