"""Samples of what each rank uses, beside the journal."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.engine.base import WorkerInfo
from lockstep.run_layout import RESOURCES_FILE
from lockstep.train.driver.resources import append_sample, look_at_gpus, sample_interval
from tests.integration.runs import fit


def until_sampled(config: dict[str, str]) -> None:
    """Busy until the driver has written a sample."""
    rank = train.get_context().get_world_rank()
    file = None
    for _ in range(60_000):
        file = next(Path(config["root"]).glob(f"*/*/{RESOURCES_FILE}"), None)
        if file is not None:
            break
        sum(range(10_000))
        time.sleep(0.001)
    train.report({"found": file is not None, "rank": rank})


def test_a_run_is_sampled(tmp_path: Path) -> None:
    result = fit(
        until_sampled, config={"root": str(tmp_path)}, storage_path=str(tmp_path), workers=2
    )
    assert result.metrics["found"]
    sample = json.loads((Path(result.path) / RESOURCES_FILE).read_text().splitlines()[0])
    assert sample["attempt"] == 1
    assert all(memory > 1 << 20 for memory in sample["memory"])
    assert all(seconds >= 0 for seconds in sample["cpu"])


def test_a_rank_that_is_gone_or_elsewhere_has_no_numbers(tmp_path: Path) -> None:
    here = os.uname().nodename
    workers = [
        WorkerInfo(0, os.getpid(), here, ""),
        WorkerInfo(1, 2**22 + 1, here, ""),
        WorkerInfo(2, os.getpid(), "elsewhere", ""),
    ]
    append_sample(str(tmp_path), 1, workers, 1.0)
    (line,) = (tmp_path / RESOURCES_FILE).read_text().splitlines()
    sample = json.loads(line)
    assert sample["cpu"][1:] == sample["memory"][1:] == [None, None]
    append_sample(str(tmp_path), 1, workers[1:], 2.0)
    append_sample(str(tmp_path / "nowhere"), 1, workers, 3.0)
    assert len((tmp_path / RESOURCES_FILE).read_text().splitlines()) == 1


def test_a_long_run_has_a_bounded_number_of_samples() -> None:
    assert sample_interval(3600) == 5.0
    samples, elapsed = 0, 0.0
    while elapsed < 30 * 86400:
        elapsed += sample_interval(elapsed)
        samples += 1
    assert samples < 50_000


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
def test_gpus_are_sampled(tmp_path: Path) -> None:
    workers = [WorkerInfo(0, os.getpid(), os.uname().nodename, "")]
    sample: dict[str, Any] = {}
    for number in range(3000):
        if "gpu" in sample:
            break
        append_sample(str(tmp_path), 1, workers, float(number))
        sample = json.loads((tmp_path / RESOURCES_FILE).read_text().splitlines()[-1])
        time.sleep(0.01)
    (gpu, *_) = sample["gpu"]
    busy, used, total = gpu
    assert 0 <= busy <= 100
    assert 0 < used < total
