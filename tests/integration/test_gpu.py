"""Runs that need a GPU."""

from __future__ import annotations

import os

import pytest

from lockstep import train
from lockstep.engine.resources import visible_gpus
from lockstep.errors import InsufficientResourcesError
from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer, get_device, prepare_model

pytestmark = pytest.mark.gpu


def on_gpu() -> None:
    import torch
    import torch.distributed as dist

    device = get_device()
    total = torch.ones(3, device=device)
    dist.all_reduce(total)
    model = prepare_model(torch.nn.Linear(3, 1))
    loss = model(total).sum()
    loss.backward()
    train.report(
        {
            "device": str(device),
            "group": dist.get_backend(),
            "count": torch.cuda.device_count(),
            "visible": os.environ["CUDA_VISIBLE_DEVICES"],
            "on_gpu": next(model.parameters()).is_cuda,
            "total": total.sum().item(),
        }
    )


def test_each_worker_sees_its_own_gpu() -> None:
    gpus = visible_gpus()
    result = TorchTrainer(
        on_gpu,
        scaling_config=ScalingConfig(num_workers=len(gpus), use_gpu=True),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert result.metrics["group"] == "nccl"
    assert result.metrics["device"] == "cuda:0"
    assert result.metrics["on_gpu"] is True
    assert result.metrics["total"] == 3.0 * len(gpus)
    assert [rank["visible"] for rank in result.metrics_by_rank] == gpus
    assert {rank["count"] for rank in result.metrics_by_rank} == {1}


def test_a_second_run_starts_from_the_warm_server_on_a_gpu_too() -> None:
    for _ in range(2):
        result = TorchTrainer(
            on_gpu,
            scaling_config=ScalingConfig(use_gpu=True),
            run_config=RunConfig(verbose=0),
        ).fit()
        assert result.metrics["on_gpu"] is True


def test_more_gpus_than_there_are_is_an_immediate_error() -> None:
    too_many = ScalingConfig(num_workers=len(visible_gpus()) + 1, use_gpu=True)
    with pytest.raises(InsufficientResourcesError, match="lower num_workers"):
        TorchTrainer(on_gpu, scaling_config=too_many).fit()


def test_without_use_gpu_the_group_is_gloo() -> None:
    def cpu_only() -> None:
        import torch.distributed as dist

        train.report({"group": dist.get_backend()})

    result = TorchTrainer(cpu_only, run_config=RunConfig(verbose=0)).fit()
    assert result.metrics["group"] == "gloo"
