"""CPUs and GPUs shared out among trials."""

from __future__ import annotations

import random

import pytest

from lockstep.engine import GroupSpec
from lockstep.engine.resources import worker_environment
from lockstep.tune.execution.resources import Allocation, ResourcePool, ResourceRequest


def test_a_trial_gets_all_its_workers_or_nothing() -> None:
    machine = ResourcePool(4)
    first = machine.take(ResourceRequest(workers=3))
    assert first is not None
    assert machine.take(ResourceRequest(workers=2)) is None
    second = machine.take(ResourceRequest(workers=1))
    assert second is not None
    assert machine.take(ResourceRequest(workers=1)) is None
    machine.give_back(first)
    assert machine.take(ResourceRequest(workers=3)) is not None


def test_what_is_too_large_runs_alone() -> None:
    machine = ResourcePool(2)
    assert machine.too_large(ResourceRequest(workers=5))
    assert not machine.too_large(ResourceRequest(workers=2))
    small = machine.take(ResourceRequest())
    assert small is not None
    assert machine.take(ResourceRequest(workers=5)) is None
    machine.give_back(small)
    big = machine.take(ResourceRequest(workers=5))
    assert big is not None
    assert machine.take(ResourceRequest()) is None


def test_gpus_of_trials_are_disjoint() -> None:
    machine = ResourcePool(16, ("0", "1", "2", "3"))
    first, second = (
        machine.take(ResourceRequest(2, gpus=1)),
        machine.take(ResourceRequest(1, gpus=2)),
    )
    assert first is not None
    assert second is not None
    assert set(first.gpus) | set(second.gpus) == {"0", "1", "2", "3"}
    assert machine.take(ResourceRequest(gpus=1)) is None
    machine.give_back(first)
    third = machine.take(ResourceRequest(gpus=1))
    assert third is not None
    assert third.gpus[0] in first.gpus


def test_a_gpu_is_shared_by_those_that_need_a_part() -> None:
    machine = ResourcePool(16, ("7",))
    shares = [machine.take(ResourceRequest(gpus=0.5)) for _ in range(3)]
    assert [share and share.gpus for share in shares] == [("7",), ("7",), None]


def test_nothing_is_lost_or_shared_out_twice() -> None:
    chance = random.Random(1)
    machine = ResourcePool(8, ("a", "b", "c"))
    held: list[Allocation] = []
    for _ in range(2000):
        if held and chance.random() < 0.5:
            machine.give_back(held.pop(chance.randrange(len(held))))
            continue
        need = ResourceRequest(
            chance.randint(1, 4), chance.choice([0.5, 1, 2]), chance.choice([0, 0, 1])
        )
        share = machine.take(need)
        if share is not None:
            held.append(share)
        if len(held) > 1:
            assert sum(share.request.total_cpus for share in held) <= 8
        devices = [device for share in held for device in share.gpus]
        assert len(devices) == len(set(devices))
    for share in held:
        machine.give_back(share)
    assert str(machine) == "0/8 CPUs, 0/3 GPUs"


@pytest.mark.parametrize(("rank", "device"), [(0, "5"), (1, "2")])
def test_workers_see_the_devices_of_their_trial(rank: int, device: str) -> None:
    spec = GroupSpec(2, "m:f", b"", gpus_per_worker=1, gpus=("5", "2"))
    assert worker_environment(spec, rank)["CUDA_VISIBLE_DEVICES"] == device
