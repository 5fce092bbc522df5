"""The torch helpers on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lockstep import train
from lockstep.engine.resources import visible_gpus
from lockstep.train import Result, RunConfig, ScalingConfig
from lockstep.train.torch import (
    TorchCheckpoint,
    TorchTrainer,
    accelerate,
    backward,
    enable_reproducibility,
    get_device,
    get_devices,
    get_grad_scaler,
    prepare_data_loader,
    prepare_model,
    prepare_optimizer,
    unscale,
)

pytestmark = pytest.mark.gpu


def fit(
    function: Callable[..., Any],
    config: dict[str, Any] | None = None,
    use_gpu: bool = True,
    workers: int = 1,
) -> Result:
    return TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        run_config=RunConfig(verbose=0),
    ).fit()


def test_without_use_gpu_everything_stays_on_the_cpu() -> None:
    def function() -> None:
        loader = prepare_data_loader(DataLoader(torch.ones(4, 2)))  # type: ignore[arg-type]
        model = prepare_model(nn.Linear(2, 1))
        train.report(
            {
                "devices": [str(device) for device in (get_device(), *get_devices())],
                "batch": str(next(iter(loader)).device),
                "model": str(next(model.parameters()).device),
            }
        )

    assert fit(function, use_gpu=False).reported_metrics == {
        "devices": ["cpu", "cpu"],
        "batch": "cpu",
        "model": "cpu",
    }


@pytest.mark.parametrize("dtype", [None, "fp16", "bf16"])
def test_mixed_precision(dtype: str | None) -> None:
    def function(config: dict[str, Any]) -> None:
        accelerate(amp=True, amp_dtype=config["dtype"])
        seen: list[str] = []

        class Net(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = super().forward(x)
                seen.append(str(y.dtype))
                return y

        torch.manual_seed(0)
        model = prepare_model(Net(16, 1))
        optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        x = torch.randn(64, 16, device=get_device())
        losses, scales = [], []
        for _ in range(20):
            output = model(x)
            loss = (output - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            backward(loss)
            gradient = next(model.parameters()).grad
            assert gradient is not None
            scales.append(gradient.abs().max().item())
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        train.report(
            {"seen": seen[0], "output": str(output.dtype), "losses": losses, "scale": scales[-1]}
        )

    metrics = fit(function, {"dtype": dtype}).metrics
    half = "torch.bfloat16" if dtype == "bf16" else "torch.float16"
    assert (metrics["seen"], metrics["output"]) == (half, "torch.float32")
    assert metrics["losses"][-1] < metrics["losses"][0] / 2
    assert (metrics["scale"] > 1000) == (half == "torch.float16"), "float16 gradients are scaled"


def test_an_overflow_skips_the_step_and_lowers_the_scale() -> None:
    def function() -> None:
        accelerate(amp=True, amp_dtype="fp16")
        model = prepare_model(nn.Linear(1, 1, bias=False))
        optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        [weight] = model.parameters()
        before, gradients = weight.item(), []
        for factor in (float("inf"), 1.0):
            optimizer.zero_grad()
            backward(weight.sum() * factor)
            assert weight.grad is not None
            gradients.append(weight.grad.item())
            optimizer.step()
            if factor != 1.0:
                assert weight.item() == before
        train.report({"moved": before - weight.item(), "scale": gradients[1]})

    metrics = fit(function).metrics
    assert metrics["moved"] == pytest.approx(1.0)
    assert metrics["scale"] == 2.0**15


def test_gradients_are_clipped_before_the_step() -> None:
    def function() -> None:
        accelerate(amp=True, amp_dtype="fp16")
        model = prepare_model(nn.Linear(1, 1, bias=False))
        optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        [weight] = model.parameters()
        before = weight.item()
        backward(weight.sum() * 5.0)
        unscale(optimizer)
        norm = nn.utils.clip_grad_norm_(weight, 0.5).item()
        optimizer.step()
        scaler = get_grad_scaler()
        assert scaler is not None
        train.report({"norm": norm, "moved": before - weight.item(), **scaler.state_dict()})

    metrics = fit(function).metrics
    assert (metrics["norm"], metrics["moved"]) == (pytest.approx(5.0), pytest.approx(0.5))
    assert metrics["scale"] == 2.0**16


class Rows(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((256, 256), float(index)), "name": str(index), "pair": (index, 1)}


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("auto_transfer", [True, False])
def test_batches_arrive_on_the_gpu_whole_and_in_order(processes: int, auto_transfer: bool) -> None:
    def function(config: dict[str, Any]) -> None:
        loader = prepare_data_loader(
            DataLoader(Rows(), batch_size=4, num_workers=config["processes"]),
            auto_transfer=config["auto_transfer"],
        )
        work = torch.randn(1024, 1024, device=get_device())
        totals, devices, names = [], set(), []
        for _ in range(2):
            for batch in loader:
                for _ in range(5):
                    work = work @ work / 32  # keeps the GPU busy while the next batch arrives
                totals.append(batch["x"].sum(dim=(1, 2)) / 256**2)
                devices |= {str(batch["x"].device), str(batch["pair"][0].device)}
                names += batch["name"]
                del batch
        train.report(
            {
                "totals": torch.cat(totals).tolist(),
                "devices": sorted(devices),
                "names": names,
            }
        )

    metrics = fit(function, {"processes": processes, "auto_transfer": auto_transfer}).metrics
    assert metrics["totals"] == [float(index) for index in range(40)] * 2
    assert metrics["names"] == [str(index) for index in range(40)] * 2
    assert metrics["devices"] == ["cuda:0"]


def sparse(rows: list[dict[str, Any]]) -> torch.Tensor:
    return torch.stack([row["x"] for row in rows]).to_sparse()


@pytest.mark.parametrize("processes", [0, 1])
def test_sparse_batches_arrive_whole(processes: int) -> None:
    def function(config: dict[str, Any]) -> None:
        loader = prepare_data_loader(
            DataLoader(Rows(), batch_size=4, num_workers=config["processes"], collate_fn=sparse)
        )
        work = torch.randn(2048, 2048, device=get_device())
        totals = []
        for batch in loader:
            assert batch.is_sparse
            assert batch.is_cuda
            for _ in range(20):
                work @ work  # so that the batch is used later than the next one arrives
            totals.append(batch.to_dense().sum(dim=(1, 2)) / 256**2)
            del batch
        train.report({"totals": torch.cat(totals).tolist()})

    totals = fit(function, {"processes": processes}).metrics["totals"]
    assert totals == [float(index) for index in range(40)]


def test_a_dataset_that_is_on_the_gpu_already() -> None:
    def function() -> None:
        data = torch.arange(6.0, device=get_device())
        loader = prepare_data_loader(DataLoader(data, batch_size=2))  # type: ignore[arg-type]
        train.report({"batches": [batch.tolist() for batch in loader]})

    assert fit(function).metrics["batches"] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_reproducible_on_a_gpu() -> None:
    def function() -> None:
        enable_reproducibility(3)
        model = prepare_model(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 1)))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            loss = model(torch.randn(32, 64, device=get_device())).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        train.report({"loss": loss.item()})

    assert fit(function).metrics["loss"] == fit(function).metrics["loss"]


def test_a_checkpoint_of_a_model_on_the_gpu_loads_on_the_cpu() -> None:
    def function() -> None:
        accelerate(amp=True)
        train.report({}, checkpoint=TorchCheckpoint.from_model(prepare_model(nn.Linear(2, 1))))

    checkpoint = fit(function).checkpoint
    assert checkpoint is not None
    model = TorchCheckpoint.from_checkpoint(checkpoint).get_model()
    assert type(model) is nn.Linear
    assert model.weight.device.type == "cpu"


@pytest.mark.skipif(len(visible_gpus()) < 2, reason="needs two GPUs")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_gpus_train_one_model(strategy: str) -> None:
    def function(config: dict[str, Any]) -> None:
        accelerate(amp=True, amp_dtype="bf16")
        torch.manual_seed(0)
        model = prepare_model(nn.Linear(8, 1), parallel_strategy=config["strategy"])
        optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        x = torch.ones(4, 8, device=get_device())
        for _ in range(5):
            loss = (model(x) - 1).square().mean()
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
        train.report({"loss": loss.item()})

    losses = [
        rank["loss"] for rank in fit(function, {"strategy": strategy}, workers=2).metrics_by_rank
    ]
    assert losses[0] == losses[1]
