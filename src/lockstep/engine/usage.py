"""What workers on this machine use: read from ``/proc`` and from NVIDIA's library, never from them.

The process that watches the workers calls this every few seconds: the driver, or a node's agent.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from lockstep.engine.base import GpuUsage, Sampled

__all__ = ["look_at_gpus", "sample_workers"]


def sample_workers(pids: Mapping[int, int]) -> Sampled:
    """What the processes of these ranks use now; those that are gone are left out."""
    used = {rank: found for rank, pid in pids.items() if (found := _usage(pid)) is not None}
    return Sampled(
        socket.gethostname(),
        tuple(used),
        tuple(seconds for seconds, _ in used.values()),
        tuple(size for _, size in used.values()),
        tuple(_gpus.latest()),
    )


def _usage(pid: int) -> tuple[float, int] | None:
    """Seconds of CPU and bytes in memory of a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name is in brackets, and may contain spaces and brackets.
            fields = file.read().rpartition(b")")[2].split()
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
    except (OSError, IndexError, ValueError):
        return None
    return round(ticks / _system("SC_CLK_TCK"), 2), pages * _system("SC_PAGE_SIZE")


@cache
def _system(name: str) -> int:
    return os.sysconf(name)


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
"""There is one of them where NVIDIA's driver is; the second under Windows."""


@cache
def _nvml() -> Any:
    """NVIDIA's library for this, initialised; None without a GPU. It makes no CUDA context."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2() == 0:
            return library
    return None


def look_at_gpus(library: Any) -> list[GpuUsage]:
    """Percent busy, bytes used and bytes of each GPU of this machine, by ``nvidia-smi``'s index.

    None is what a GPU does not tell: its load where it is divided (MIG), its memory where that is
    the machine's own, anything of one that is lost.
    """
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    found: list[GpuUsage] = []
    for index in range(count.value):
        handle, busy, memory = ctypes.c_void_p(), _Utilization(), _Memory()
        one: GpuUsage = (None, None, None)
        if not library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)):
            if not library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
                one = (None, int(memory.used), int(memory.total))
            if not library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy)):
                one = (int(busy.gpu), *one[1:])
        found.append(one)
    return found


class _GpuWatch:
    """Looks at the GPUs in a thread: where one does not answer, the run continues."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._found: list[GpuUsage] = []

    def latest(self) -> list[GpuUsage]:
        """What the last look has found; another one begins. Empty while one takes long."""
        if not any(map(os.path.exists, _DEVICES)):
            return []
        if self._thread is not None and self._thread.is_alive():
            return []
        found, self._found = self._found, []
        self._thread = threading.Thread(target=self._look, name="lockstep-gpus", daemon=True)
        self._thread.start()
        return found

    def _look(self) -> None:
        library = _nvml()
        with suppress(AttributeError):  # a driver too old for these functions
            self._found = look_at_gpus(library) if library is not None else []


_gpus = _GpuWatch()
