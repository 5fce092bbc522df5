"""Trials that need a GPU."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.engine.resources import visible_gpus
from lockstep.errors import InsufficientResourcesError
from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer, get_device
from lockstep.tune import TuneConfig, Tuner
from lockstep.tune.execution.launch import Launcher
from lockstep.tune.execution.resources import ResourcePool, ResourceRequest
from lockstep.tune.schedulers import FIFOScheduler
from lockstep.tune.utils import wait_for_gpu
from tests.integration.tune.tuning import fit, note, notes


@pytest.mark.gpu
def test_trials_never_share_a_gpu(tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        import torch

        device = os.environ["CUDA_VISIBLE_DEVICES"]
        note(tmp_path, "events", f"{time.monotonic()} 1 {device}")
        total = torch.ones(4, device=get_device()).sum().item()
        tune.report({"total": total, "device": device})
        note(tmp_path, "events", f"{time.monotonic()} -1 {device}")

    trainer = TorchTrainer(
        loop, scaling_config=ScalingConfig(use_gpu=True), run_config=RunConfig(verbose=0)
    )
    count = 2 * len(visible_gpus()) + 1
    grid = Tuner(trainer, tune_config=TuneConfig(num_samples=count)).fit()
    assert grid.num_terminated == count
    assert {result.metrics["total"] for result in grid} == {4.0}
    assert {result.metrics["device"] for result in grid} == set(visible_gpus())
    users: dict[str, int] = {}
    events = sorted(line.split() for line in notes(tmp_path, "events"))
    for _, change, device in sorted(events, key=lambda event: float(event[0])):
        users[device] = users.get(device, 0) + int(change)
        assert users[device] <= 1


@pytest.mark.gpu
def test_a_function_with_a_gpu() -> None:
    def trial(config: dict[str, Any]) -> None:
        import torch

        tune.report({"sum": torch.full((2,), config["x"], device="cuda").sum().item()})

    bound = tune.with_resources(trial, {"cpu": 1, "gpu": 1})
    grid = fit(bound, {"x": tune.grid_search([1.0, 2.0, 3.0])})
    assert [result.metrics["sum"] for result in grid] == [2.0, 4.0, 6.0]


@pytest.mark.gpu
def test_trials_that_take_a_part_of_a_gpu_share_it(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        note(tmp_path, "here", os.environ["CUDA_VISIBLE_DEVICES"])
        deadline = time.monotonic() + 120
        while len(notes(tmp_path, "here")) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        gpus = tune.get_trial_resources()["GPU"]
        tune.report({"together": len(notes(tmp_path, "here")), "gpus": gpus})

    grid = fit(tune.with_resources(trial, {"cpu": 0.5, "gpu": 0.5}), num_samples=2)
    assert [result.metrics["gpus"] for result in grid] == [0.5, 0.5]
    assert [result.metrics["together"] for result in grid] == [2, 2]
    assert len(set(notes(tmp_path, "here"))) == 1


@pytest.mark.gpu
def test_waiting_for_a_gpu() -> None:
    def trial(config: dict[str, Any]) -> None:
        import torch

        wait_for_gpu(target_util=0.99)
        kept = torch.zeros(2**28, device="cuda")  # 1 GiB
        with pytest.raises(RuntimeError, match=r"of its memory is still in use after 2 checks"):
            wait_for_gpu(target_util=0.0, retry=2, delay_s=0.01)
        with pytest.raises(RuntimeError, match="nvidia-smi answered"):
            wait_for_gpu(99)
        tune.report({"kept": len(kept)})

    (result,) = fit(tune.with_resources(trial, {"gpu": 1}))
    assert result.error is None


@pytest.mark.parametrize("gpus", [0.5, 1, 2])
def test_gpus_of_functions_and_classes(gpus: float) -> None:
    class Class(tune.Trainable):
        pass

    machine = ResourcePool(4.0, ("0", "1"))
    for trainable in (lambda config: None, Class):
        bound = tune.with_resources(trainable, {"cpu": 1, "gpu": gpus})
        launcher = Launcher(bound, RunConfig(), machine, FIFOScheduler())
        assert launcher.request({}) == ResourceRequest(1, 1.0, gpus)


def test_gpus_that_are_not_there_are_said_at_once() -> None:
    trainer = TorchTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=99, use_gpu=True),
        run_config=RunConfig(verbose=0),
    )
    with pytest.raises(InsufficientResourcesError, match="need 99"):
        Tuner(trainer).fit()
    bound = tune.with_resources(lambda config: None, {"gpu": 99})
    with pytest.raises(InsufficientResourcesError, match="99"):
        fit(bound)
