"""What do the ledger and the guard cost a training loop with DistributedDataParallel?

One process trains two equal models in turn, an epoch each: one that lockstep measures and guards,
and one that it knows nothing of. The CPU time of an epoch is compared with that of its neighbour,
so what else runs on the machine changes both alike.
"""

from __future__ import annotations

import time
from typing import Any

import common
import ddp
from common import Against, Bench, Measurement, Reach

FILE = "guard.py"
STEPS = 20


# Programs.


def train_in_turn(config: dict[str, Any]) -> None:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from lockstep import train
    from lockstep.train import Guard
    from lockstep.train.torch import prepare_model
    from lockstep.train.worker.session import current

    session: Any = current()
    measured = prepare_model(ddp.cnn())
    collectives = session.before_reports[:]
    plain = DistributedDataParallel(ddp.cnn())
    optimizers = {
        model: torch.optim.SGD(model.parameters(), lr=0.01) for model in (measured, plain)
    }
    images, labels = ddp.batches()
    seconds: dict[str, list[float]] = {"on": [], "off": []}
    for epoch in range(2 * config["pairs"] + 2):
        # On, off, off, on: neither is always the first.
        on = epoch % 4 in (0, 3)
        session.close_guard()
        session._guard = None
        session.before_reports = collectives[:] if on else []
        if on:
            session.use_guard(Guard(), None)
        model = measured if on else plain
        began = time.process_time()
        loss = torch.zeros(())
        for step in range(STEPS):
            optimizers[model].zero_grad()
            loss = nn.functional.cross_entropy(model(images[step]), labels[step])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizers[model].step()
        train.report({"loss": loss.item()})
        if epoch >= 2:  # the first of each allocate what the others use again
            seconds["on" if on else "off"].append(time.process_time() - began)
    if train.get_context().get_world_rank() == 0:
        common.emit(config["out"], **seconds)


def play_lockstep(config: dict[str, Any]) -> None:
    common.lockstep_fit(train_in_turn, config, verbose=0)


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """Pairs of epochs in a few processes."""
    bench.say("DDP with ledger and guard, in turn with a model that lockstep does not know")
    on, off = [], []
    for _ in range(bench.times(10, 1)):
        (record,) = bench.run(FILE, "lockstep", pairs=3)[2]
        on += record["on"]
        off += record["off"]
    return [
        Measurement(
            "DDP steps with ledger and guard, for each CPU second of rank 0",
            "/s",
            [STEPS / one for one in on],
            against=[
                Against(
                    "without",
                    [STEPS / one for one in off],
                    Reach(0.99, "within 1 %"),
                    in_turn=True,
                )
            ],
        )
    ]


if __name__ == "__main__":
    common.play({"lockstep": play_lockstep})
