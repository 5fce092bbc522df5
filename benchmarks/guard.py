"""What do the ledger and the guard cost a training loop?

One process trains one model in blocks of a few steps and a report, in turn with and without them:
on, off, off, on. A block is compared with its neighbour, so what else runs on the machine changes
both alike. The CPU time inside the code of the guard and the ledger is measured as well: that share
is known to a small part of a per cent on a busy machine, too.

On a machine with a GPU:

    python benchmarks/guard.py gpu '{"out": "/dev/stdout", "work": "/tmp/guard"}'
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import common
import ddp
from common import Against, Bench, Measurement, Reach

FILE = "guard.py"
STEPS = 5
"""Of a block."""


# Programs.


def train_in_turn(config: dict[str, Any]) -> None:
    import torch

    from lockstep import train
    from lockstep.train import Guard
    from lockstep.train.torch import get_device, prepare_model
    from lockstep.train.worker.guard import GuardWatch
    from lockstep.train.worker.session import current
    from lockstep.train.worker.steps import StepWatch

    session: Any = current()
    device = get_device()
    on_gpu = device.type == "cuda"
    step = _gpu_step(prepare_model, device) if on_gpu else _cpu_step(prepare_model)
    inside = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal inside
            began = time.thread_time()
            try:
                return function(*args)
            finally:
                inside += time.thread_time() - began

        return call

    for watch, name in ((StepWatch, "_before_step"), (GuardWatch, "check")):
        setattr(watch, name, timed(getattr(watch, name)))
    collectives = list(map(timed, session.before_reports))
    found: dict[str, list[float]] = {"cpu on": [], "cpu off": [], "on": [], "off": [], "inside": []}
    for block in range(2 * config["pairs"] + 4):
        on = block % 4 in (0, 3)  # neither is always the first
        session.close_guard()
        session._guard = None
        session.before_reports = collectives if on else []
        if on:
            session.use_guard(Guard(), None)
        inside = 0.0
        wall, cpu = time.perf_counter(), time.process_time()
        for number in range(STEPS):
            loss = step(number)
        if on_gpu:
            torch.cuda.synchronize()  # as a loop does that reads its loss
        train.report({"loss": loss.item()})
        if block >= 4:  # the first blocks allocate what the others use again
            which = "on" if on else "off"
            found[which].append(time.perf_counter() - wall)
            found[f"cpu {which}"].append(time.process_time() - cpu)
            if on:
                found["inside"].append(inside)
    if train.get_context().get_world_rank() == 0:
        common.emit(config["out"], **found)


def _cpu_step(prepare_model: Callable[..., Any]) -> Callable[[int], Any]:
    import torch
    from torch import nn

    model = prepare_model(ddp.cnn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = ddp.batches()

    def step(number: int) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[number]), labels[number])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    return step


def _gpu_step(prepare_model: Callable[..., Any], device: Any) -> Callable[[int], Any]:
    """A transformer of 86 million parameters, in bfloat16 where that is allowed."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, batch_first=True, norm_first=True)
    model = prepare_model(nn.TransformerEncoder(layer, 12, enable_nested_tensor=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = torch.randn(STEPS, 16, 512, 768, device=device)

    def step(number: int) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(rows[number]).float().square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


def play_lockstep(config: dict[str, Any]) -> None:
    common.lockstep_fit(train_in_turn, config, verbose=0)


def play_gpu(config: dict[str, Any]) -> None:
    """One GPU: prints the ratios."""
    import tempfile

    from lockstep.train import RunConfig, ScalingConfig
    from lockstep.train.torch import TorchTrainer

    with tempfile.NamedTemporaryFile() as records:
        TorchTrainer(
            train_in_turn,
            train_loop_config={"pairs": 150, **config, "out": records.name},
            scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
            run_config=RunConfig(storage_path=config["work"], verbose=0),
        ).fit()
        found = json.load(records)
    shown = {}
    for one in _measurements(found, "a GPU"):
        (peer,) = one.against
        shown[one.what] = {"median": one.value, peer.system: one.ratio(peer)}
        shown[one.what]["95 %"] = one.ratio_interval(peer)
    common.emit(config["out"], **shown)


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """Pairs of blocks in a few processes."""
    bench.say("DDP with ledger and guard, in turn with neither")
    found: dict[str, list[float]] = {}
    for _ in range(bench.times(4, 1)):
        (record,) = bench.run(FILE, "lockstep", pairs=bench.times(100, 10))[2]
        for key, values in record.items():
            found[key] = found.get(key, []) + values
    return _measurements(found, "DDP, rank 0")


def _measurements(found: dict[str, list[float]], where: str) -> list[Measurement]:
    def rate(seconds: list[float]) -> list[float]:
        return [STEPS / one for one in seconds]

    def against(system: str, seconds: list[float]) -> list[Against]:
        return [Against(system, rate(seconds), Reach(0.99, "within 1 %"), in_turn=True)]

    own = [cpu - inside for cpu, inside in zip(found["cpu on"], found["inside"], strict=True)]
    cpu, wall = rate(found["cpu on"]), rate(found["on"])
    what = f"{where}: steps with ledger and guard, for each"
    less = against("less the CPU time in their own code", own)
    return [
        Measurement(f"{what} CPU second", "/s", cpu, against=less),
        Measurement(
            f"{what} CPU second, in turn", "/s", cpu, against=against("without", found["cpu off"])
        ),
        Measurement(
            f"{what} second, in turn", "/s", wall, against=against("without", found["off"])
        ),
    ]


if __name__ == "__main__":
    common.play({"lockstep": play_lockstep, "gpu": play_gpu})
