"""Runs that need a GPU."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from lockstep import train
from lockstep.engine.resources import visible_gpus
from lockstep.errors import InsufficientResourcesError
from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig, TrainingFailedError
from lockstep.train.torch import TorchConfig, TorchTrainer, get_device, get_devices, prepare_model

pytestmark = pytest.mark.gpu


def on_gpu() -> None:
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
            "devices": ",".join(map(str, get_devices())),
            "group": dist.get_backend(),
            "count": torch.cuda.device_count(),
            "visible": os.environ["CUDA_VISIBLE_DEVICES"],
            "on_gpu": next(model.parameters()).is_cuda,
            "total": total.sum().item(),
        }
    )


def test_each_worker_has_its_own_gpu() -> None:
    """It is the one that its local rank is the index of, as scripts for DDP expect."""
    gpus = visible_gpus()
    result = TorchTrainer(
        on_gpu,
        scaling_config=ScalingConfig(num_workers=len(gpus), use_gpu=True),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert result.metrics["group"] == "nccl"
    assert result.metrics["on_gpu"] is True
    assert result.metrics["total"] == 3.0 * len(gpus)
    own = [f"cuda:{index}" for index in range(len(gpus))]
    assert [rank["device"] for rank in result.metrics_by_rank] == own
    assert [rank["devices"] for rank in result.metrics_by_rank] == own
    assert {rank["visible"] for rank in result.metrics_by_rank} == {",".join(gpus)}
    assert {rank["count"] for rank in result.metrics_by_rank} == {len(gpus)}


def test_without_a_framework_each_worker_sees_its_own_gpu_only() -> None:
    gpus = visible_gpus()
    result = DataParallelTrainer(
        lambda: train.report({"visible": os.environ["CUDA_VISIBLE_DEVICES"]}),
        scaling_config=ScalingConfig(num_workers=len(gpus), use_gpu=True),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert [rank["visible"] for rank in result.metrics_by_rank] == gpus


def test_a_script_that_goes_by_its_local_rank() -> None:
    def function() -> None:
        device = torch.device(f"cuda:{train.local_rank()}")
        torch.cuda.set_device(device)
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(3, 1).to(device), device_ids=[train.local_rank()]
        )
        model(torch.ones(2, 3, device=device)).sum().backward()
        train.report({"device": str(get_device())})

    gpus = visible_gpus()
    result = TorchTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=len(gpus), use_gpu=True),
        run_config=RunConfig(verbose=0),
    ).fit()
    own = [f"cuda:{index}" for index in range(len(gpus))]
    assert [rank["device"] for rank in result.metrics_by_rank] == own


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


def test_workers_share_a_gpu(capfd: pytest.CaptureFixture[str]) -> None:
    """Gloo connects them: NCCL refuses two ranks on one device."""
    gpus = visible_gpus()
    workers = 2 * len(gpus)
    halves = ScalingConfig(workers, use_gpu=True, resources_per_worker={"GPU": 0.5, "CPU": 1})
    result = TorchTrainer(on_gpu, scaling_config=halves).fit()
    assert {rank["group"] for rank in result.metrics_by_rank} == {"gloo"}
    assert {rank["on_gpu"] for rank in result.metrics_by_rank} == {True}
    assert result.metrics["total"] == 3.0 * workers
    own = [f"cuda:{index}" for index in range(len(gpus)) for _ in range(2)]
    assert [rank["device"] for rank in result.metrics_by_rank] == own
    assert "their process group is gloo" in capfd.readouterr().out
    with pytest.raises(TrainingFailedError, match="NCCL refuses two ranks on one device"):
        TorchTrainer(on_gpu, torch_config=TorchConfig("nccl"), scaling_config=halves).fit()
    too_many = replace(halves, num_workers=workers + 1)
    with pytest.raises(InsufficientResourcesError, match=r"0\.5 GPU\(s\) each need"):
        TorchTrainer(on_gpu, scaling_config=too_many).fit()


def test_without_use_gpu_the_group_is_gloo() -> None:
    def cpu_only() -> None:
        import torch.distributed as dist

        train.report({"group": dist.get_backend()})

    result = TorchTrainer(cpu_only, run_config=RunConfig(verbose=0)).fit()
    assert result.metrics["group"] == "gloo"
