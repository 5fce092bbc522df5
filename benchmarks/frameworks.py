"""What do Lightning and Accelerate take for the same: start, save, recover, step, wait?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import common
import ddp
import memory
import recovery
import startup
from common import Against, Bench, Measurement, ProgramFailed

FILE = "frameworks.py"
FLOATS = 64 << 20
"""A model of 256 MB."""
RESTARTED = {
    "flags": ["--max-restarts=1"],
    "env": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
}


# Programs. ``task`` says what is done once the process group is ready.


def task_of(config: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    """What needs the process group only, and no model."""
    return {"start": startup.first_line, "idle": memory.idle, "kill": recovery.train}[
        config["task"]
    ]


def timed(config: dict[str, Any], save: Callable[[str], None]) -> None:
    """Save ``rounds`` times on all ranks, and note how long rank 0 was blocked."""
    import torch.distributed as dist

    for number in range(config["rounds"] + 1):
        if dist.get_rank() == 0:
            os.sync()
        dist.barrier()
        start = time.perf_counter()
        save(f"{config['work']}/saved-{number}")
        if dist.get_rank() == 0 and number:  # the first one is not counted
            common.emit(config["out"], blocked=time.perf_counter() - start)


def big_model() -> Any:
    import torch

    return torch.nn.Linear(FLOATS >> 10, 1 << 10, bias=False)


def with_lockstep(config: dict[str, Any]) -> None:
    from lockstep import train
    from lockstep.train.torch import prepare_model, unwrap_model

    if config["task"] == "save":
        model = unwrap_model(prepare_model(big_model()))

        def save(path: str) -> None:
            state = {"state_dict": model.state_dict()}
            train.report({"loss": 0.1}, checkpoint=train.Checkpoint.from_dict(state))

        timed(config, save)
    elif config["task"] == "steps":
        ddp.train_cnn(config, lambda loss: train.report({"loss": loss}) and None)
    else:
        task_of(config)(config)


def play_lockstep(config: dict[str, Any]) -> None:
    from lockstep.train import CheckpointConfig, FailureConfig

    for number in range(config["fits"]):
        called = time.monotonic()
        common.lockstep_fit(
            with_lockstep,
            {**config, "fit": number},
            failure_config=FailureConfig(max_failures=1 if config["task"] == "kill" else 0),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        )
        common.emit(config["out"], fit=number, called=called, seconds=time.monotonic() - called)


def play_lightning(config: dict[str, Any]) -> None:
    """As a user's script: Lightning starts the other process with the same command."""
    import lightning.pytorch as pl
    import torch

    class Module(pl.LightningModule):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.settings = {**config, "fit": number}
            save = config["task"] == "save"
            self.layer = big_model() if save else torch.nn.Linear(1, 1)

        def setup(self, stage: str) -> None:
            if config["task"] == "start":
                startup.first_line(self.settings)

        def on_train_start(self) -> None:
            if config["task"] == "save":
                timed(config, lambda path: self.trainer.save_checkpoint(path + ".ckpt"))
            elif config["task"] != "start":
                task_of(config)(config)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.layer.weight.sum() * 0

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    loader = torch.utils.data.DataLoader(torch.zeros(2, 1))
    for number in range(config["fits"]):
        called = time.monotonic()
        if config["task"] == "steps":
            _lightning_steps(config)
            continue
        _lightning_trainer(max_steps=1).fit(Module(number), loader)
        if os.environ.get("LOCAL_RANK", "0") == "0":
            seconds = time.monotonic() - called
            common.emit(config["out"], fit=number, called=called, seconds=seconds)


def _lightning_trainer(**options: Any) -> Any:
    import lightning.pytorch as pl

    return pl.Trainer(
        accelerator="cpu",
        devices=common.WORKERS,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def _lightning_steps(config: dict[str, Any]) -> None:
    """The loop of ``ddp.train_cnn`` as Lightning runs it; a log every 40 steps."""
    import lightning.pytorch as pl
    import torch
    import torch.distributed as dist

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = ddp.cnn()

        def on_train_epoch_start(self) -> None:
            if self.current_epoch == 1:
                dist.barrier()
                self.begun = time.perf_counter()

        def training_step(self, batch: Any, number: int) -> Any:
            images, labels = batch
            loss = torch.nn.functional.cross_entropy(self.layers(images), labels)
            self.log("loss", loss, on_step=False, on_epoch=True)
            return loss

        def on_train_end(self) -> None:
            dist.barrier()
            seconds = time.perf_counter() - self.begun
            if dist.get_rank() == 0:
                common.emit(config["out"], rate=config["epochs"] * ddp.STEPS / seconds)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    images, labels = ddp.batches()
    pairs: Any = list(zip(images, labels, strict=True))
    loader = torch.utils.data.DataLoader(pairs, batch_size=None)
    trainer = _lightning_trainer(max_epochs=config["epochs"] + 1, use_distributed_sampler=False)
    trainer.fit(Module(), loader)


def play_accelerate(config: dict[str, Any]) -> None:
    """Started by torchrun: ``accelerate launch`` needs MPI on CPUs, and is torchrun on GPUs."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    if config["task"] == "save":
        accelerator.prepare(big_model())
        timed(config, lambda path: accelerator.save_state(path) and None)
    elif config["task"] == "steps":
        ddp.train_cnn(config, lambda loss: None, accelerator)
    else:
        task_of(config)({**config, "fit": 0})
    accelerator.end_training()


# Measuring: lockstep, Lightning and Accelerate in turn.

SYSTEMS = {"lockstep": "python", "lightning": "python", "accelerate": "torchrun"}
NAMES = {"lightning": "Lightning", "accelerate": "Accelerate"}


def measure(bench: Bench) -> list[Measurement]:
    """Each question in turn over the systems, so that a busy minute meets all of them."""
    return [*_starts(bench), _saves(bench), _kills(bench), _steps(bench), _idle(bench)]


def _starts(bench: Bench) -> list[Measurement]:
    bench.say("cold scripts, then later fits in the same process")
    first: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    later: dict[str, list[float]] = {"lockstep": [], "lightning": []}
    for _ in range(bench.times(5, 1)):
        for name, launcher in SYSTEMS.items():
            fits = 4 if name in later else 1
            started, _, records = bench.run(FILE, name, launcher=launcher, task="start", fits=fits)
            first[name].append(startup.ready(records, 0) - started)
            if name in later:
                later[name] += startup.split(records, fits)[0]
    return [
        _measured("cold script to the function's first line, group ready", "s", first),
        _measured(
            "later fit() of the same script to the function's first line, group ready", "s", later
        ),
    ]


def _saves(bench: Bench) -> Measurement:
    bench.say("a checkpoint of 256 MB")
    blocked: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for _ in range(bench.times(4, 1)):
        for name in SYSTEMS:
            records = _run(bench, name, task="save", rounds=2)
            blocked[name] += [record["blocked"] for record in records if "blocked" in record]
    return _measured("checkpoint of a 256 MB model blocks; only lockstep flushes", "s", blocked)


def _kills(bench: Bench) -> Measurement:
    bench.say("a worker is killed; torchrun starts the peers' scripts and restarts them")
    seconds: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for _ in range(bench.times(5, 1)):
        for name in SYSTEMS:
            options = {} if name == "lockstep" else {"launcher": "torchrun", **RESTARTED}
            took = recovery.once(bench, name, FILE, limit=120, task="kill", fits=1, **options)
            if took is None:
                raise ProgramFailed(f"{name} did not recover")
            seconds[name].append(took)
    return _measured("SIGKILL of a worker to the restarted function on all", "s", seconds)


def _steps(bench: Bench) -> Measurement:
    bench.say("DDP steps")
    rates: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for _ in range(bench.times(6, 1)):
        for name in SYSTEMS:
            records = _run(bench, name, task="steps", epochs=bench.times(6, 3), env=ddp.equal())
            rates[name].append(next(r["rate"] for r in records if "rate" in r))
    return _measured("DDP steps, small CNN", "/s", rates)


def _idle(bench: Bench) -> Measurement:
    bench.say("memory of an idle run")
    sizes: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for _ in range(bench.times(4, 1)):
        for name, launcher in SYSTEMS.items():
            sizes[name].append(
                memory.megabytes(bench, name, launcher, file=FILE, task="idle", fits=1)
            )
    return _measured("PSS of an idle run, all processes", "MB", sizes)


def _run(bench: Bench, name: str, **config: Any) -> list[dict[str, Any]]:
    return bench.run(FILE, name, launcher=SYSTEMS[name], fits=1, **config)[2]


def _measured(what: str, unit: str, samples: dict[str, list[float]]) -> Measurement:
    peers = [
        Against(NAMES[name], found, in_turn=len(found) == len(samples["lockstep"]))
        for name, found in samples.items()
        if name != "lockstep"
    ]
    return Measurement(what, unit, samples["lockstep"], against=peers)


if __name__ == "__main__":
    common.play(
        {
            "lockstep": play_lockstep,
            "lightning": play_lightning,
            "accelerate": play_accelerate,
        }
    )
