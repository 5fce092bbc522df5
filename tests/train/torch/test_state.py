"""train.State of models on several workers: DDP and FSDP2, at any number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep import train
from lockstep.testing import verify_resume
from lockstep.train import Checkpoint, Result, RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer, prepare_model


def learn(config: Mapping[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    torch.manual_seed(0)
    layers = torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3)
    model = prepare_model(torch.nn.Sequential(*layers), parallel_strategy=config["strategy"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
    state = train.State(model=model, optimizer=optimizer, scheduler=scheduler, step=0)
    state.restore(config["from"]) if config["from"] else state.restore()
    for step in range(state.step, config["steps"]):
        if config["alike"]:
            torch.manual_seed(step)
        loss = model(torch.randn(8, 5) + (0 if config["alike"] else rank)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        state.step = step + 1
        train.report({"loss": loss.item()}, checkpoint=state)


def trainer_of(
    strategy: str,
    workers: int,
    steps: int,
    start: Checkpoint | None = None,
    alike: bool = True,
) -> TorchTrainer:
    return TorchTrainer(
        learn,
        train_loop_config={"strategy": strategy, "steps": steps, "from": start, "alike": alike},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0),
    )


def losses(result: Result) -> list[float]:
    assert result.metrics_dataframe is not None
    return list(result.metrics_dataframe["loss"])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_killed_rank_changes_nothing(strategy: str) -> None:
    report = verify_resume(trainer_of(strategy, 2, 4, alike=False), tolerance=0.0)
    assert report, str(report)


def test_a_sharded_state_loads_at_any_size() -> None:
    whole = losses(trainer_of("fsdp", 2, 4).fit())
    half = trainer_of("fsdp", 2, 2).fit()
    sizes = [
        Path(str(half.checkpoint and half.checkpoint.path), f"train_state/rank_{rank}.safetensors")
        for rank in (0, 1)
    ]
    assert all(path.exists() for path in sizes)
    for strategy, workers in (("fsdp", 3), ("ddp", 1)):
        got = losses(trainer_of(strategy, workers, 4, half.checkpoint).fit())
        assert got == pytest.approx(whole[2:], rel=1e-5)
    alone = trainer_of("ddp", 1, 2).fit()
    got = losses(trainer_of("fsdp", 2, 4, alone.checkpoint).fit())
    assert got == pytest.approx(whole[2:], rel=1e-5)


def some_ranks(config: Mapping[str, Any]) -> None:
    """Ranks 0 and 1 have a state, rank 2 reports metrics only; the models differ in one place."""
    rank = train.get_context().get_world_rank()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(40)]
    with torch.no_grad():
        layers[config["layer"]].weight[3, 5] += rank
    model = torch.nn.Sequential(*layers)
    state = train.State(model=model, part=layers[0], step=1)
    if not config["from"]:
        train.report({"rank": rank}, checkpoint=state if rank < 2 else None)
        return
    own = {name: value.clone() for name, value in model.state_dict().items()}
    for value in model.state_dict().values():
        value.zero_()
    state.restore(config["from"])
    same = all(torch.equal(own[name], value) for name, value in model.state_dict().items())
    train.report({"same": int(same)}, reduce={"same": "min"})


@pytest.mark.parametrize("layer", [0, 3])
def test_models_that_differ_somewhere_are_not_mixed(layer: int) -> None:
    def run(workers: int, start: Checkpoint | None) -> Result:
        return TorchTrainer(
            some_ranks,
            train_loop_config={"from": start, "layer": layer},
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(verbose=0),
        ).fit()

    assert run(2, run(3, None).checkpoint).metrics["same"] == 1
