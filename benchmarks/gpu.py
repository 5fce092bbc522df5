"""On a GPU: what AMP gains, whether data transfer overlaps, and what lockstep's loop costs.

    python benchmarks/gpu.py

Prints ratios of the same work with and without, measured in turns in the same run. Needs one
NVIDIA GPU; the reach is a loop within 1 % of the plain one.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 5


def block(width: int = 1024, layers: int = 4) -> Any:
    """A small transformer."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(
        width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def seconds_per_step(step: Callable[[], None], steps: int) -> float:
    """The mean over some steps, after a few that do not count."""
    import torch

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def amp(config: dict[str, Any]) -> None:
    """Training steps of the transformer in float32 or in bfloat16."""
    import torch

    from lockstep import train

    torch.backends.cuda.matmul.allow_tf32 = False
    train.torch.accelerate(amp=config["amp"], amp_dtype=torch.bfloat16 if config["amp"] else None)
    model = train.torch.prepare_model(block())
    optimizer = train.torch.prepare_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-4))
    data = torch.randn(16, 512, 1024, device=train.torch.get_device())

    def step() -> None:
        optimizer.zero_grad()
        train.torch.backward(model(data).square().mean())
        optimizer.step()

    train.report({"seconds": seconds_per_step(step, 20)})


def transfer(config: dict[str, Any]) -> None:
    """Steps on batches that lie in pinned memory, through our loader or moved by a blocking loop.

    A copy of 256 MB takes about as long as the step's matrix products, so that overlapping the two
    can halve the time.
    """
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    from lockstep import train

    pinned = [torch.randn(64 << 20).pin_memory() for _ in range(4)]

    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return (pinned[number % len(pinned)] for number in range(40))

    loader: Any = DataLoader(Batches(), batch_size=None)
    device = train.torch.get_device()
    if config["ours"]:
        loader = train.torch.prepare_data_loader(loader)
    weight = torch.randn(4096, 4096, device=device)

    def epoch() -> None:
        state = weight
        for batch in loader:
            batch = batch.to(device)
            for _ in range(2):
                state = torch.tanh(state @ weight)
            state = state + batch[:1]

    epoch()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(3):
        epoch()
    torch.cuda.synchronize()
    train.report({"seconds": (time.perf_counter() - start) / 3})


def loop(report: Callable[[dict[str, Any]], None]) -> float:
    """A plain training loop that reports every 50 steps; seconds a step."""
    import torch

    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    model = block(512, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randn(16, 256, 512, device=device)
    count = 0

    def step() -> None:
        nonlocal count
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        count += 1
        if count % 50 == 0:
            report({"loss": loss.item()})

    return seconds_per_step(step, 400)


def loop_in_lockstep(config: dict[str, Any]) -> None:
    """The loop on a worker, with train.report."""
    from lockstep import train

    train.report({"seconds": loop(train.report)})


def fit(function: Callable[[dict[str, Any]], None], **config: Any) -> float:
    """One run on one GPU worker; the seconds it reported last."""
    from lockstep.train import RunConfig, ScalingConfig
    from lockstep.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as storage:
        result = TorchTrainer(
            function,
            train_loop_config=config,
            scaling_config=ScalingConfig(use_gpu=True),
            run_config=RunConfig(storage_path=storage, verbose=0),
        ).fit()
        return float(result.metrics["seconds"])


def plain_loop() -> float:
    """The loop in a Python of its own, without lockstep."""
    import subprocess

    code = "import sys, gpu; print(gpu.loop(lambda metrics: None))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return float(done.stdout.split()[-1])


def compare(what: str, ours: Callable[[], float], theirs: Callable[[], float]) -> dict[str, Any]:
    """Both in turns; above 1 the first is faster."""
    pairs = [(ours(), theirs()) for _ in range(ROUNDS)]
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(other / own for own, other in pairs)
    record = {
        "what": what,
        "seconds": a,
        "against_seconds": b,
        "ratio": b / a,
        "lowest": ratios[0],
        "highest": ratios[-1],
    }
    print(f"{what}: {b / a:.3f}x ({ratios[0]:.3f}-{ratios[-1]:.3f})", flush=True)
    return record


def main() -> None:
    """Measure and print; with a path as argument, write the figures there as JSON."""
    import torch

    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py needs an NVIDIA GPU.")
    print(torch.cuda.get_device_name(0), "torch", torch.__version__, flush=True)
    records = [
        compare(
            "AMP, bf16 against fp32, training steps of a transformer block",
            lambda: fit(amp, amp=True),
            lambda: fit(amp, amp=False),
        ),
        compare(
            "prepare_data_loader against a plain blocking loader, epochs",
            lambda: fit(transfer, ours=True),
            lambda: fit(transfer, ours=False),
        ),
        compare(
            "the loop in lockstep with reports against the plain loop",
            lambda: fit(loop_in_lockstep),
            plain_loop,
        ),
    ]
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
