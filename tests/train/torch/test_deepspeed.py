"""DeepSpeed's engine in the workers of a TorchTrainer, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.config import RunConfig, ScalingConfig
from lockstep.train import Checkpoint
from lockstep.train.torch import TorchTrainer

pytest.importorskip("deepspeed")


def train_func(config: dict[str, Any]) -> None:
    import os
    import tempfile

    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed  # type: ignore[import-not-found]
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "zero_optimization": {"stage": config["stage"]},
            "zero_allow_untested_optimizer": True,
        },
        dist_init_required=False,
    )
    rank = train.get_context().get_world_rank()
    torch.manual_seed(rank)
    inputs = torch.randn(8, 4)
    labels = inputs.sum(dim=1, keepdim=True)
    for _ in range(10):
        loss = torch.nn.functional.mse_loss(engine(inputs), labels)
        engine.backward(loss)
        engine.step()
        with tempfile.TemporaryDirectory() as directory:
            engine.save_checkpoint(directory)
            torch.distributed.barrier()
            total = float(sum(p.sum() for p in model.parameters()))
            train.report({"loss": float(loss), "total": total}, checkpoint=Checkpoint(directory))


@pytest.mark.parametrize("stage", [0, 1])
def test_an_engine_trains_over_the_runs_process_group(tmp_path: Path, stage: int) -> None:
    result = TorchTrainer(
        train_func,
        train_loop_config={"stage": stage},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    frame = result.metrics_dataframe
    assert frame["loss"].iloc[-1] < frame["loss"].iloc[0]
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as directory:
        files = {path.name for path in Path(directory).rglob("*") if path.is_file()}
    assert "latest" in files
    # Every rank has written its part of the optimizer's state.
    if stage:
        assert sum("optim_states" in name for name in files) == 2
