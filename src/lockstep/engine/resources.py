"""CPUs and GPUs: how many there are, and which of them each worker sees."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Mapping
from itertools import takewhile

from lockstep import runtime, settings
from lockstep.engine.base import GroupSpec
from lockstep.errors import InsufficientResourcesError

__all__ = [
    "BlasThreads",
    "available_cpus",
    "check_fits",
    "room_for",
    "server_environment",
    "visible_gpus",
    "worker_environment",
]

_BLAS_SETTERS = [
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("", "scipy_")
    for suffix in ("", "64_")
]


def available_cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus(environment: Mapping[str, str] | None = None) -> list[str]:
    """The NVIDIA GPUs a worker may use, as ``CUDA_VISIBLE_DEVICES`` would name them.

    ``environment`` is laid over this process's. Read from the device files, because asking CUDA
    would make forking unsafe.
    """
    present = sorted(
        int(path.removeprefix("/dev/nvidia"))
        for path in glob.glob("/dev/nvidia[0-9]*")
        if path.removeprefix("/dev/nvidia").isdigit()
    )
    chosen = (environment or {}).get("CUDA_VISIBLE_DEVICES", settings.cuda_visible_devices())
    if chosen is None:
        # CUDA numbers the devices it can see from 0, whatever the files are called.
        return [str(index) for index in range(len(present))]
    if not present:
        return []
    names = [name.strip() for name in chosen.split(",")]
    # CUDA stops at the first name that is no device.
    return list(takewhile(lambda name: _may_be_device(name, len(present)), names))


def _may_be_device(name: str, count: int) -> bool:
    try:
        return 0 <= int(name) < count
    except ValueError:
        return bool(name)  # a UUID


def check_fits(spec: GroupSpec) -> list[str]:
    """Raise if the GPUs asked for are not here; return a warning if CPUs are oversubscribed."""
    need = spec.gpus_per_worker * spec.size
    have = len(visible_gpus(spec.environment)) if need else 0
    if need > have:
        raise InsufficientResourcesError(
            f"{spec.size} worker(s) with {spec.gpus_per_worker} GPU(s) each need {need}, but this "
            f"machine has {have} visible; lower num_workers or set use_gpu=False."
        )
    cpus = available_cpus()
    if spec.size > cpus:
        return [
            f"{spec.size} workers share {cpus} CPU(s): this works, but they take turns; "
            "lower ScalingConfig(num_workers=…) for speed."
        ]
    return []


def room_for(spec: GroupSpec) -> int:
    """How many workers such as ``spec``'s fit, by ``lockstep.init``'s numbers or this machine's."""
    limits = runtime.current()
    cpus = available_cpus() if limits.num_cpus is None else limits.num_cpus
    room = int(cpus // (spec.cpus_per_worker or 1))
    if spec.gpus_per_worker:
        gpus = len(visible_gpus(spec.environment))
        gpus = gpus if limits.num_gpus is None else min(gpus, limits.num_gpus)
        room = min(room, gpus // spec.gpus_per_worker)
    return room


def worker_environment(spec: GroupSpec, rank: int) -> dict[str, str]:
    """What a worker's environment gets besides the driver's and the user's: threads and GPUs."""
    environment = dict(spec.environment)
    if settings.user_thread_setting(spec.environment) is None:
        share = spec.cpus_per_worker or available_cpus() / spec.size
        environment["OMP_NUM_THREADS"] = str(max(1, int(share)))
    if spec.gpus_per_worker:
        first = rank * spec.gpus_per_worker
        devices = visible_gpus(spec.environment) if spec.gpus is None else spec.gpus
        mine = devices[first : first + spec.gpus_per_worker]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    return environment


def server_environment(spec: GroupSpec) -> dict[str, str]:
    """A fork server's environment. Its own OpenBLAS has nothing to do: it needs no threads."""
    environment = settings.child_environment(spec.environment)
    if settings.user_thread_setting(spec.environment) is None:
        environment["OPENBLAS_NUM_THREADS"] = "1"
    return environment


class BlasThreads:
    """How many threads each OpenBLAS of this process (NumPy's, SciPy's) starts for its work.

    It has read the variables when it was loaded, and takes one a CPU at most by itself. Forked
    processes inherit the number and start their threads when they need them; one that sets it
    itself starts all of them at once.
    """

    def __init__(self) -> None:
        self._setters = _blas_thread_setters()
        self._threads = min(_blas_threads(settings.child_environment({})), available_cpus())

    def follow(self, environment: Mapping[str, str]) -> None:
        """Sets the number that these variables ask for."""
        threads = _blas_threads(environment)
        if threads != self._threads:
            self._threads = threads
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
    except OSError:  # only Linux tells
        return []
    found: list[Callable[[int], object]] = []
    for path in sorted(paths):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            found += [getattr(library, name) for name in _BLAS_SETTERS if hasattr(library, name)]
    return found
