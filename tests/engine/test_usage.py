"""What workers use, seen from outside them."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from lockstep.engine.base import Sampled
from lockstep.engine.usage import look_at_gpus, sample_workers


def test_a_rank_that_is_gone_is_left_out() -> None:
    found = sample_workers({3: os.getpid(), 4: 2**22 + 1})
    assert found.hostname == os.uname().nodename
    assert found.ranks == (3,)
    assert found.cpu[0] > 0
    assert found.memory[0] > 1 << 20


class Nvml:
    """The calls of NVIDIA's library, with its results: 3 is "not supported", 15 "is lost"."""

    def __init__(self, *gpus: tuple[int, int, int]) -> None:
        self.gpus = gpus

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return int(self.gpus[index.value][0])

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.used, memory._obj.total = 10, 20
        return int(self.gpus[handle.value - 1][1])

    def nvmlDeviceGetUtilizationRates(self, handle: Any, busy: Any) -> int:
        busy._obj.gpu = 97
        return int(self.gpus[handle.value - 1][2])


def test_what_a_gpu_does_not_tell_is_left_out_and_the_others_keep_their_numbers() -> None:
    library = Nvml((15, 0, 0), (0, 0, 3), (0, 3, 0), (0, 0, 0))
    assert look_at_gpus(library) == [
        (None, None, None),
        (None, 10, 20),
        (97, None, None),
        (97, 10, 20),
    ]


@pytest.mark.gpu
def test_gpus_are_sampled() -> None:
    found = Sampled("", (), (), ())
    for _ in range(6000):
        found = sample_workers({0: os.getpid()})
        if found.gpus:
            break
        time.sleep(0.01)
    busy, used, total = found.gpus[0]
    assert busy is None or 0 <= busy <= 100
    assert used is not None
    assert total is not None
    assert 0 < used < total
