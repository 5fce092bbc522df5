"""Does a training loop run as fast as under torchrun, with a report after every short epoch?"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import common
from common import Against, Bench, Measurement, Reach

FILE = "ddp.py"
BATCH = 32
STEPS = 40


# Programs: one loop, three ways to start it.


def cnn() -> Any:
    """The model."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def batches() -> tuple[Any, Any]:
    """Random images and labels, for each step of an epoch."""
    import torch

    return torch.randn(STEPS, BATCH, 3, 32, 32), torch.randint(10, (STEPS, BATCH))


def train_cnn(
    config: dict[str, Any], report: Callable[[float], None], accelerator: Any = None
) -> None:
    """A small CNN on random images; steps a second over the epochs after the first."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model: Any = cnn()
    if accelerator is None:
        model = DistributedDataParallel(model)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    if accelerator is not None:
        model, optimizer = accelerator.prepare(model, optimizer)
    images, labels = batches()
    start = cpu = 0.0
    for epoch in range(config["epochs"] + 1):
        if epoch == 1:
            dist.barrier()
            start, cpu = time.perf_counter(), time.process_time()
        loss: Any = torch.zeros(())
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[step]), labels[step])
            if accelerator is None:
                loss.backward()
            else:
                accelerator.backward(loss)
            optimizer.step()
        report(loss.item())
    dist.barrier()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    if dist.get_rank() == 0:
        steps = config["epochs"] * STEPS
        threads = torch.get_num_threads()
        common.emit(config["out"], rate=steps / seconds, cpu_rate=steps / cpu, threads=threads)


def train_reporting(config: dict[str, Any]) -> None:
    train = importlib.import_module(config["module"])
    train_cnn(config, lambda loss: train.report({"loss": loss}))


def play_lockstep(config: dict[str, Any]) -> None:
    common.lockstep_fit(train_reporting, {**config, "module": "lockstep.train"})


def play_ray(config: dict[str, Any]) -> None:
    common.ray_fit(train_reporting, {**config, "module": "ray.train"})


def play_torchrun(config: dict[str, Any]) -> None:
    import torch.distributed as dist

    common.torchrun_group()
    train_cnn(config, lambda loss: None)
    dist.destroy_process_group()


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """lockstep and torchrun in turn, which of them first in turn as well."""
    bench.say("DDP: lockstep and torchrun in turn")
    rates: dict[str, list[float]] = {"lockstep": [], "torchrun": []}
    cpu_rates: dict[str, list[float]] = {"lockstep": [], "torchrun": []}
    threads = set()
    for number in range(bench.times(16, 2)):
        order = ("lockstep", "torchrun") if number % 2 == 0 else ("torchrun", "lockstep")
        for system in order:
            launcher = "torchrun" if system == "torchrun" else "python"
            record = _run(bench, system, launcher, epochs=bench.times(6, 3))
            rates[system].append(record["rate"])
            cpu_rates[system].append(record["cpu_rate"])
            threads.add(record["threads"])
    if len(threads) != 1:
        raise common.ProgramFailed(f"threads differ between the systems: {sorted(threads)}")

    def ray() -> list[float]:
        count = bench.times(2, 1)
        return [_run(bench, "ray", "ray", epochs=6)["rate"] for _ in range(count)]

    return [
        Measurement(
            "DDP steps, small CNN, a report every 40",
            "/s",
            rates["lockstep"],
            against=[
                Against(
                    "torchrun, no reports",
                    rates["torchrun"],
                    Reach(0.98, "within 2 %"),
                    in_turn=True,
                ),
                bench.peer("Ray Train", ray),
            ],
        ),
        Measurement(
            "the same, for each CPU second of rank 0",
            "/s",
            cpu_rates["lockstep"],
            against=[Against("torchrun, no reports", cpu_rates["torchrun"], in_turn=True)],
        ),
    ]


def _run(bench: Bench, system: str, launcher: str, epochs: int) -> dict[str, Any]:
    (record,) = bench.run(FILE, system, launcher=launcher, epochs=epochs, env=equal())[2]
    return record


def equal() -> dict[str, str]:
    """Variables that make the systems equal: threads, and what malloc does."""
    threads = str(max(1, (os.cpu_count() or 1) // common.WORKERS))
    # Whether malloc gives memory back between steps is chance, and worth 10 % of a step.
    malloc = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
    return {"OMP_NUM_THREADS": threads, **malloc}


if __name__ == "__main__":
    common.play({"lockstep": play_lockstep, "ray": play_ray, "torchrun": play_torchrun})
