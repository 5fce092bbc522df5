"""What each rank uses, sampled every few seconds: memory, CPU and GPUs. For the dashboard.

The driver reads ``/proc`` and appends one line to ``resources.jsonl``::

    {"time": 1769860000.0, "attempt": 1,
     "cpu": [12.3, 11.9],            seconds of CPU since the process started, a rank each
     "memory": [812646400, null],    bytes in memory; null: the process is gone, or elsewhere
     "gpu": [[97, 61203283968, 85899345920]]}    of this machine's: percent busy, bytes used, bytes;
                                                 null: the GPU does not say

Neither a worker nor the journal is involved. Workers on other machines are not sampled.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from lockstep.engine.base import WorkerInfo
from lockstep.run_layout import RESOURCES_FILE
from lockstep.storage.local import open_private

__all__ = ["FIRST_S", "append_sample", "look_at_gpus", "sample_interval"]

_INTERVAL_S = 5.0
FIRST_S = 1.0
"""How long to wait for the first one; also while the workers start."""
_MOST = 8640
"""About how many samples a run of any length has: of one over half a day, they are fewer."""


def sample_interval(elapsed_s: float) -> float:
    """How long to wait for the next sample, after so much time of the run."""
    return max(_INTERVAL_S, elapsed_s / _MOST)


def append_sample(directory: str, attempt: int, workers: Sequence[WorkerInfo], now: float) -> None:
    """Append one sample to the run's file. Where that fails, there is no sample."""
    host = socket.gethostname()
    used = [_usage(worker.pid) if worker.hostname == host else None for worker in workers]
    if not any(used):
        return
    sample: dict[str, Any] = {
        "time": round(now, 3),
        "attempt": attempt,
        "cpu": [one and one[0] for one in used],
        "memory": [one and one[1] for one in used],
    }
    if gpus := _gpus.latest():
        sample["gpu"] = gpus
    path = os.path.join(directory, RESOURCES_FILE)
    line = (json.dumps(sample, separators=(",", ":")) + "\n").encode()
    with suppress(OSError), open(path, "ab", buffering=0, opener=open_private) as file:
        file.write(line)


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


@cache
def _nvml() -> Any:
    """NVIDIA's library for this, initialised; None without a GPU. It makes no CUDA context."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2() == 0:
            return library
    return None


_Gpu = tuple[int | None, int | None, int | None]


def look_at_gpus(library: Any) -> list[_Gpu]:
    """Percent busy, bytes used and bytes of each GPU of this machine, by ``nvidia-smi``'s index.

    None is what a GPU does not say: its load where it is divided (MIG), its memory where that is
    the machine's own, anything of one that is lost.
    """
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    found: list[_Gpu] = []
    for index in range(count.value):
        handle, busy, memory = ctypes.c_void_p(), _Utilization(), _Memory()
        one: _Gpu = (None, None, None)
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
        self._found: list[_Gpu] = []

    def latest(self) -> list[_Gpu]:
        """What the last look has found; another one begins. Empty while one takes long."""
        if not os.path.exists("/dev/nvidiactl"):
            return []
        if self._thread is not None and self._thread.is_alive():
            return []
        found, self._found = self._found, []
        self._thread = threading.Thread(target=self._look, name="lockstep-gpus", daemon=True)
        self._thread.start()
        return found

    def _look(self) -> None:
        library = _nvml()
        self._found = look_at_gpus(library) if library is not None else []


_gpus = _GpuWatch()
