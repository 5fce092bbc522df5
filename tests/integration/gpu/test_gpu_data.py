"""Datasets on a GPU: batches arrive on the worker's own device."""

from __future__ import annotations

import pytest
import torch

import lockstep.data
from lockstep import train
from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer, get_device

pytestmark = pytest.mark.gpu

ROWS = 200_000


def add_up() -> None:
    """Each batch is used while the next one is on its way."""
    shard = train.get_dataset_shard("train")
    totals = []
    for _ in range(2):
        total = torch.zeros((), dtype=torch.int64, device=get_device())
        for batch in shard.iter_torch_batches(batch_size=1000, prefetch_batches=4):
            assert batch["id"].device == get_device()
            total += batch["id"].sum()
            del batch  # its memory may be used for the next one, but not before this sum is done
        totals.append(total.item())
    pinned = next(shard.iter_torch_batches(device="cpu", pin_memory=True))["id"].is_pinned()
    train.report({"totals": totals, "device": str(get_device()), "pinned": pinned})


def test_batches_come_to_the_workers_gpu() -> None:
    result = TorchTrainer(
        add_up,
        datasets={"train": lockstep.data.range(ROWS, override_num_blocks=9).random_shuffle(seed=1)},
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert result.metrics["device"] == "cuda:0"
    assert result.metrics["pinned"] is True
    assert result.metrics["totals"] == [ROWS * (ROWS - 1) // 2] * 2


def test_batches_stay_on_the_cpu_unless_a_gpu_was_asked_for() -> None:
    def ask() -> None:
        batch = next(train.get_dataset_shard("train").iter_torch_batches())
        train.report({"device": str(batch["id"].device)})

    result = TorchTrainer(
        ask, datasets={"train": lockstep.data.range(10)}, run_config=RunConfig(verbose=0)
    ).fit()
    assert result.metrics["device"] == "cpu"
