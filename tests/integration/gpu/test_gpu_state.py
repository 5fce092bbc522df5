"""train.State on a GPU: copied on a stream of its own, and never torn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from lockstep import train
from lockstep.testing import verify_resume
from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer, get_device, prepare_model

pytestmark = pytest.mark.gpu


def learn(config: Mapping[str, Any]) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(512, 4096), torch.nn.BatchNorm1d(4096), torch.nn.Linear(4096, 8)
    model = prepare_model(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = train.State(model=model, optimizer=optimizer, step=0, checks=[])
    state.restore()
    for step in range(state.step, 6):
        loss = model(torch.randn(64, 512, device=get_device())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.step = step + 1
        state.checks.append(float(sum(p.double().sum() for p in model.parameters())))
        # The next step changes the parameters at once, while they may still be copied.
        train.report({"loss": loss.item()}, checkpoint=state)


def trainer() -> TorchTrainer:
    return TorchTrainer(
        learn,
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(verbose=0),
    )


def test_a_killed_worker_changes_nothing() -> None:
    report = verify_resume(trainer(), tolerance=0.0)
    assert report, str(report)


def test_a_snapshot_has_the_state_of_its_report() -> None:
    result = trainer().fit()
    assert len(result.best_checkpoints) == 6
    for checkpoint, _ in result.best_checkpoints:
        found = checkpoint.to_dict()
        names = [name for name in found["model"] if "running" not in name and "num" not in name]
        total = float(sum(found["model"][name].double().sum() for name in names))
        assert total == pytest.approx(found["checks"][-1], rel=1e-9)
