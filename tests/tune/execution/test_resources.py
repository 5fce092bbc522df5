"""CPUs and GPUs allocated to trials."""

from __future__ import annotations

import random

import pytest

from lockstep.engine import GroupSpec
from lockstep.engine.resources import worker_environment
from lockstep.tune.execution.resources import Allocation, ResourcePool, ResourceRequest


def test_a_trial_gets_all_its_workers_or_nothing() -> None:
    pool = ResourcePool(4)
    first = pool.take(ResourceRequest(workers=3))
    assert first is not None
    assert pool.take(ResourceRequest(workers=2)) is None
    second = pool.take(ResourceRequest(workers=1))
    assert second is not None
    assert pool.take(ResourceRequest(workers=1)) is None
    pool.give_back(first)
    assert pool.take(ResourceRequest(workers=3)) is not None


def test_what_is_too_large_runs_alone() -> None:
    pool = ResourcePool(2)
    assert pool.too_large(ResourceRequest(workers=5))
    assert not pool.too_large(ResourceRequest(workers=2))
    small = pool.take(ResourceRequest())
    assert small is not None
    assert pool.take(ResourceRequest(workers=5)) is None
    pool.give_back(small)
    big = pool.take(ResourceRequest(workers=5))
    assert big is not None
    assert pool.take(ResourceRequest()) is None


def test_gpus_of_trials_are_disjoint() -> None:
    pool = ResourcePool(16, ("0", "1", "2", "3"))
    first, second = (
        pool.take(ResourceRequest(2, gpus=1)),
        pool.take(ResourceRequest(1, gpus=2)),
    )
    assert first is not None
    assert second is not None
    assert set(first.gpus) | set(second.gpus) == {"0", "1", "2", "3"}
    assert pool.take(ResourceRequest(gpus=1)) is None
    pool.give_back(first)
    third = pool.take(ResourceRequest(gpus=1))
    assert third is not None
    assert third.gpus[0] in first.gpus


def test_a_gpu_is_shared_by_trials_that_need_a_part() -> None:
    pool = ResourcePool(16, ("7",))
    allocations = [pool.take(ResourceRequest(gpus=0.5)) for _ in range(3)]
    assert [allocation and allocation.gpus for allocation in allocations] == [("7",), ("7",), None]


def test_nothing_is_lost_or_allocated_twice() -> None:
    chance = random.Random(1)
    pool = ResourcePool(8, ("a", "b", "c"))
    held: list[Allocation] = []
    for _ in range(2000):
        if held and chance.random() < 0.5:
            pool.give_back(held.pop(chance.randrange(len(held))))
            continue
        request = ResourceRequest(
            chance.randint(1, 4), chance.choice([0.5, 1, 2]), chance.choice([0, 0, 1])
        )
        allocation = pool.take(request)
        if allocation is not None:
            held.append(allocation)
        if len(held) > 1:
            assert sum(allocation.request.total_cpus for allocation in held) <= 8
        devices = [device for allocation in held for device in allocation.gpus]
        assert len(devices) == len(set(devices))
    for allocation in held:
        pool.give_back(allocation)
    assert str(pool) == "0/8 CPUs, 0/3 GPUs"


@pytest.mark.parametrize(("rank", "device"), [(0, "5"), (1, "2")])
def test_workers_see_the_devices_of_their_trial(rank: int, device: str) -> None:
    spec = GroupSpec(2, "m:f", b"", gpus_per_worker=1, gpus=("5", "2"))
    assert worker_environment(spec, rank)["CUDA_VISIBLE_DEVICES"] == device
