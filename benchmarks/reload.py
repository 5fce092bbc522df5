"""How long from saving a file to the first step of the new code?

``lockstep run --reload`` stops the run and continues it from its last state. With torchrun one
stops the run by hand, and starts it again: only the second of the two is timed.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
from common import Against, Bench, Measurement, Reach

FILE = "reload.py"
MODULE = "code_that_changes"
STEP_S = 0.01


# Programs: a model of 100 000 parameters, whose first step is noted.


def train_small(config: dict[str, Any], state: Any, report: Any) -> None:
    import torch

    code = importlib.import_module(MODULE)
    first = True
    while code.RUNS:
        x = torch.randn(32, 256)
        loss = state.model(x).square().mean()
        state.optimizer.zero_grad()
        loss.backward()
        state.optimizer.step()
        state.step += 1
        if first:
            common.emit(config["out"], version=code.VERSION, at=time.monotonic(), step=state.step)
            first = False
        if report is None:
            return
        time.sleep(STEP_S)
        report({"loss": loss.item()}, checkpoint=state)


def _model() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 128))


def train_lockstep(config: dict[str, Any]) -> None:
    import torch

    from lockstep import train
    from lockstep.train.torch import prepare_model

    sys.path.insert(0, config["code"])
    model = prepare_model(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = train.State(model=model, optimizer=optimizer, step=0)
    state.restore()
    rank = train.get_context().get_world_rank()
    out = config["out"] if rank == 0 else "/dev/null"
    train_small({**config, "out": out}, state, train.report)


def play_lockstep(config: dict[str, Any]) -> None:
    from lockstep.train import CheckpointConfig

    sys.path.insert(0, config["code"])
    importlib.import_module(MODULE)
    every = CheckpointConfig(every="1min", num_to_keep=1)
    common.lockstep_fit(train_lockstep, config, name="reload", checkpoint_config=every, verbose=0)


def play_torchrun(config: dict[str, Any]) -> None:
    from types import SimpleNamespace

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    sys.path.insert(0, config["code"])
    rank = common.torchrun_group()
    model = DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    out = config["out"] if rank == 0 else "/dev/null"
    state = SimpleNamespace(model=model, optimizer=optimizer, step=0)
    train_small({**config, "out": out}, state, None)
    dist.destroy_process_group()


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """Save a file, wait for the first step of the new code; in turn with a start of torchrun."""
    bench.say("lockstep run --reload, in turn with torchrun")
    ours, theirs = [], []
    with tempfile.TemporaryDirectory(dir=bench.work) as directory:
        code = Path(directory, f"{MODULE}.py")
        runtime = Path(directory, "runtime")
        runtime.mkdir(mode=0o700)
        variables = {"XDG_RUNTIME_DIR": str(runtime)}
        code.write_text("VERSION, RUNS = 0, True\n")
        try:
            with bench.program(
                FILE, "lockstep", launcher="reload", code=directory, env=variables
            ) as program:
                program.wait_for_records(1)
                # The first reload may still find no warm server: it is not counted.
                for version in range(1, bench.times(9, 3) + 2):
                    time.sleep(0.5)  # some steps
                    saved = time.monotonic()
                    code.write_text(f"VERSION, RUNS = {version}, True\n")
                    program.wait_for_records(version + 1)
                    if version > 1:
                        ours.append(program.records()[-1]["at"] - saved)
                        started, _, records = bench.run(
                            FILE, "torchrun", launcher="torchrun", code=directory
                        )
                        theirs.append(records[0]["at"] - started)
        finally:
            common.lockstep_command(variables, "warm", "--stop")
    return [
        Measurement(
            "from saving a file to the first step of the new code",
            "s",
            ours,
            Reach(1.0, "1 s"),
            [Against("torchrun, started again", theirs, in_turn=True)],
        )
    ]


if __name__ == "__main__":
    common.play({"lockstep": play_lockstep, "torchrun": play_torchrun})
