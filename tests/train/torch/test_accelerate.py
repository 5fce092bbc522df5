"""A plain ``Accelerator()`` inside workers uses the run's process group."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("accelerate") is None, reason="Accelerate is not installed"
    ),
    # Most of the time is the import of Accelerate in two workers.
    pytest.mark.timeout(300),
]


def test_accelerator_uses_the_process_group(tmp_path: Path) -> None:
    def function() -> None:
        import torch
        import torch.distributed as dist
        from accelerate import Accelerator
        from torch.utils.data import DataLoader

        group = dist.group.WORLD
        accelerator = Accelerator()
        assert dist.group.WORLD is group
        assert os.environ["ACCELERATE_TORCH_DEVICE"] == str(accelerator.device) == "cpu"
        linear = torch.nn.Linear(1, 1)
        rows: Any = torch.arange(16.0).reshape(16, 1) / 16
        model, optimizer, loader = accelerator.prepare(
            linear, torch.optim.SGD(linear.parameters(), lr=0.1), DataLoader(rows, batch_size=4)
        )
        seen = []
        for batch in loader:
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen += accelerator.gather(batch).flatten().tolist()
        train.report(
            {
                "place": [accelerator.process_index, accelerator.num_processes],
                "kind": [str(accelerator.distributed_type), accelerator.state.backend],
                "wrapped": type(model).__name__,
                "steps": len(loader),
                "seen": sorted(seen),
                "weight": linear.weight.item(),
                "gathered": accelerator.gather(torch.tensor([accelerator.process_index])).tolist(),
            }
        )

    result = TorchTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()

    first, second = result.metrics_by_rank
    assert (first["place"], second["place"]) == ([0, 2], [1, 2])
    assert first["kind"] == ["DistributedType.MULTI_CPU", "gloo"]
    assert first["wrapped"] == "DistributedDataParallel"
    assert first["steps"] == 2
    assert first["seen"] == [index / 16 for index in range(16)]
    assert first["weight"] == second["weight"]
    assert first["gathered"] == second["gathered"] == [0, 1]


@pytest.mark.gpu
def test_accelerator_takes_the_workers_gpu(tmp_path: Path) -> None:
    def function() -> None:
        import torch.distributed as dist
        from accelerate import Accelerator

        accelerator = Accelerator()
        train.report({"device": str(accelerator.device), "group": dist.get_backend()})

    result = TorchTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert result.metrics is not None
    assert (result.metrics["device"], result.metrics["group"]) == ("cuda:0", "nccl")
