"""What does a checkpoint of the training state cost: while it is saved, and after a failure?

``run.py state`` measures 256 MB of state on two CPU workers. On a machine with a GPU,
``python benchmarks/state.py gpu FILE`` measures a GPT-2 of 124 million parameters with AdamW, and
writes its table to FILE. All variants take turns in one process, so the machine's slower and faster
minutes meet all of them.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
from common import Against, Bench, Measurement, Reach

FILE = "state.py"


# The model. On a CPU it is only memory: 64 million floats.


def build(config: dict[str, Any]) -> tuple[Any, Any]:
    """A model and its optimizer, with the optimizer's state."""
    import torch

    if config["device"] == "cpu":
        model: Any = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.ones(4 << 20)) for _ in range(16)]
        )
        return model, torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.device("cuda"):
        model = Gpt2()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def Gpt2() -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(768), nn.LayerNorm(768)
            self.qkv, self.out = nn.Linear(768, 2304), nn.Linear(768, 768)
            self.mlp = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768))

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.qkv(self.first(x)).view(batch, length, 3, 12, 64).permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(batch, length, 768))
            return x + self.mlp(self.second(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
            self.blocks = nn.Sequential(*[Block() for _ in range(12)])
            self.norm = nn.LayerNorm(768)

        def forward(self, x: Any) -> Any:
            places = torch.arange(x.shape[1], device=x.device)
            hidden = self.norm(self.blocks(self.tokens(x) + self.places(places)))
            return hidden @ self.tokens.weight.t()

    return Model()


def stepper(config: dict[str, Any], model: Any, optimizer: Any) -> Callable[[], None]:
    """One training step; on a CPU nothing."""
    if config["device"] == "cpu":
        return lambda: None
    import torch

    # Large enough that the GPU is the limit, as in training, and not the launching of its kernels.
    tokens = torch.randint(0, 50257, (16, 1024), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def sync(config: dict[str, Any]) -> None:
    if config["device"] != "cpu":
        import torch

        torch.cuda.synchronize()


# What blocks training, in turns.


def savers(config: dict[str, Any], model: Any, optimizer: Any) -> dict[str, Callable[[], Any]]:
    """Each way to save; what it returns is waited for before the next one, where that can be."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    from lockstep import train

    rank = train.get_context().get_world_rank()
    folder = config["work"]
    state = train.State(model=model, optimizer=optimizer)
    tensors = [t for t in _tensors(model, optimizer) if t.numel()]
    pin = config["device"] != "cpu"
    targets = [torch.empty(t.shape, dtype=t.dtype, pin_memory=pin) for t in tensors]
    # Plain dicts: one way of torch to stage a state cannot copy an OrderedDict.
    content = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()}
    group = dist.new_group(backend="gloo")  # which an asynchronous save needs

    def copy() -> None:
        for target, tensor in zip(targets, tensors, strict=True):
            target.copy_(tensor, non_blocking=True)
        sync(config)

    def fresh(name: str) -> str:
        path = os.path.join(folder, f"{name}-{time.monotonic_ns() if rank == 0 else 0}")
        return str(train.collective.broadcast_from_rank_zero(path))

    def torch_save() -> Callable[[], None]:
        path = os.path.join(folder, "torch.pt")
        if rank == 0:
            torch.save(content, path)
        train.collective.barrier()
        return lambda: os.unlink(path) if rank == 0 else None

    def fabric_save() -> Callable[[], None]:
        fabric = importlib.import_module("lightning.fabric").Fabric(accelerator="cpu", devices=1)
        path = os.path.join(folder, "fabric.ckpt")
        if rank == 0:
            fabric.save(path, content)
        train.collective.barrier()
        return lambda: os.unlink(path) if rank == 0 else None

    def dcp_save() -> Callable[[], None]:
        path = fresh("dcp")
        dcp.save(content, checkpoint_id=path)
        return lambda: shutil.rmtree(path, ignore_errors=True)

    def names() -> Any:
        return importlib.import_module("torch.distributed.checkpoint.state_dict").get_state_dict(
            model, optimizer
        )

    def dcp_async(saved: Any = content, **options: Any) -> Callable[[], None]:
        path = fresh("async")
        future: Any = dcp.async_save(saved, checkpoint_id=path, process_group=group, **options)

        def finish() -> None:
            getattr(future, "upload_completion", future).result()
            shutil.rmtree(path, ignore_errors=True)

        finish.staged = getattr(future, "staging_completion", None)  # type: ignore[attr-defined]
        return finish

    stagers: list[Any] = []

    def dcp_pinned() -> Callable[[], None]:
        staging: Any = importlib.import_module("torch.distributed.checkpoint.staging")
        if not stagers:
            options = staging.StagingOptions(
                use_pinned_memory=pin,
                use_shared_memory=True,
                use_async_staging=True,
                use_non_blocking_copy=pin,
            )
            stagers.append(staging.DefaultStager(options))
        if len(stagers) == 1:
            stagers.append(dict(zip(("model", "optimizer"), names(), strict=True)))
        finish = dcp_async(stagers[1], async_stager=stagers[0])
        # Training must not change the tensors before they are staged.
        finish.staged.result()  # type: ignore[attr-defined]
        return finish

    def ours() -> Callable[[], None]:
        train.report({}, checkpoint=state)
        return lambda: train.get_all_reported_checkpoints() and None

    found: dict[str, Callable[[], Any]] = {"copy": copy, "lockstep": ours, "torch.save": torch_save}
    if config["device"] == "cpu":
        found["Lightning Fabric.save"] = fabric_save
    found["dcp.save"] = dcp_save
    found["dcp.async_save"] = dcp_async
    found["dcp.async_save, staged in a thread"] = dcp_pinned
    return found


def _tensors(model: Any, optimizer: Any) -> list[Any]:
    found = [p.detach() for p in model.parameters()]
    for values in optimizer.state.values():
        found += [value for value in values.values() if hasattr(value, "numel")]
    return found


def save_rounds(config: dict[str, Any]) -> None:
    """Every way once a round; how long it blocks, and until the bytes are on storage."""
    from lockstep import train

    model, optimizer = build(config)
    step = stepper(config, model, optimizer)
    for _ in range(3):
        step()
    ways = savers(config, model, optimizer)
    rank = train.get_context().get_world_rank()
    nbytes = sum(t.numel() * t.element_size() for t in _tensors(model, optimizer))
    block = os.urandom(1 << 20)
    for number in range(config["rounds"] + 1):
        for name, save in list(ways.items()):
            step()
            sync(config)
            train.collective.barrier()
            began, worked = time.perf_counter(), time.thread_time()
            try:
                finish = save()
                returned = time.perf_counter() - began
                worked = time.thread_time() - worked
                sync(config)
                blocked = time.perf_counter() - began
                if finish is not None:
                    finish()
            except Exception as error:  # a peer that does not work here
                if name == "lockstep":
                    raise
                del ways[name]
                common.emit(config["out"], way=name, failed=f"{type(error).__name__}: {error}")
                continue
            done = time.perf_counter() - began
            if rank == 0:
                common.emit(
                    config["out"],
                    way=name,
                    first=number == 0,
                    returned=returned,
                    blocked=blocked,
                    worked=worked,
                    done=done,
                    nbytes=nbytes,
                )
        train.collective.barrier()
        if rank == 0 and number:
            path = os.path.join(config["work"], "plain")
            began = time.perf_counter()
            with open(path, "wb", buffering=0) as file:
                for _ in range(nbytes >> 20):
                    file.write(block)
                os.fsync(file.fileno())
            common.emit(config["out"], way="write and flush", done=time.perf_counter() - began)
            os.unlink(path)


def memory_of(config: dict[str, Any]) -> None:
    """How much more memory a rank has while the state is saved, at most, in megabytes."""
    from lockstep import train

    model, optimizer = build(config)
    rank = train.get_context().get_world_rank()
    # What every way allocates once for the measurement, the targets of "copy", is there before.
    save = savers(config, model, optimizer)[config["way"]]
    before = common.pss_megabytes([os.getpid()])
    most, over = [before], threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            most.append(common.pss_megabytes([os.getpid()]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(3):
        save()()
        train.collective.barrier()
    over.set()
    watcher.join()
    common.emit(config["out"], rank=rank, more=max(most) - before)


def throughput(config: dict[str, Any]) -> None:
    """Training without a state, and with one every 5 seconds, in turns."""
    from lockstep import train

    model, optimizer = build(config)
    step = stepper(config, model, optimizer)
    state = train.State(model=model, optimizer=optimizer)
    for _ in range(20):
        step()
    train.report({}, checkpoint=state)
    train.get_all_reported_checkpoints()
    for number in range(2 * config["rounds"]):
        saves = number % 2 == 1
        sync(config)
        began = time.perf_counter()
        steps, next_save = 0, began + 1.0
        while time.perf_counter() - began < 10.0:
            for _ in range(5):
                step()
            steps += 5
            sync(config)
            if saves and time.perf_counter() > next_save:
                next_save += 5.0
                train.report({}, checkpoint=state)
        sync(config)
        rate = steps / (time.perf_counter() - began)
        common.emit(config["out"], way="with" if saves else "without", rate=rate)
        if saves:
            train.get_all_reported_checkpoints()


def restart(config: dict[str, Any]) -> None:
    """Killed after a save: until the first step with the state restored is finished."""
    from lockstep import train

    model, optimizer = build(config)
    built = time.monotonic()
    state = train.State(model=model, optimizer=optimizer, step=0)
    restored = state.restore()
    step = stepper(config, model, optimizer)
    done = time.monotonic()
    step()
    sync(config)
    common.emit(
        config["out"],
        restored=restored,
        built=built,
        loaded=done,
        stepped=time.monotonic(),
        step=state.step,
    )
    if restored:
        return
    for number in range(3):
        step()
        state.step = number + 1
        train.report({}, checkpoint=state)
        if number < 2 or not config["memory"]:
            train.get_all_reported_checkpoints()
    time.sleep(0.5)  # sealed, and with luck not written yet
    common.emit(config["out"], killed=time.monotonic())
    os.kill(os.getpid(), signal.SIGKILL)


def load_rounds(config: dict[str, Any]) -> None:
    """Restoring alone, in turns with torch.load of the same content."""
    import torch

    from lockstep import train

    model, optimizer = build(config)
    step = stepper(config, model, optimizer)
    step()
    state = train.State(model=model, optimizer=optimizer)
    train.report({}, checkpoint=state)
    train.get_all_reported_checkpoints()
    path = os.path.join(config["work"], "torch.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    where = config["device"] if config["device"] == "cpu" else "cuda"

    def with_torch() -> None:
        found = torch.load(path, mmap=True, map_location=where, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])

    ways: dict[str, Callable[[], Any]] = {"lockstep": state.restore, "torch.load": with_torch}
    for number in range(config["rounds"] + 1):
        for name, load in ways.items():
            sync(config)
            began, worked = time.perf_counter(), time.thread_time()
            load()
            sync(config)
            seconds, worked = time.perf_counter() - began, time.thread_time() - worked
            if number:
                common.emit(config["out"], way=name, load=seconds, worked=worked)


# Programs.


def fit(function: Callable[..., Any], config: dict[str, Any], **options: Any) -> None:
    from lockstep.train import CheckpointConfig, RunConfig, ScalingConfig
    from lockstep.train.torch import TorchTrainer

    gpu = config["device"] != "cpu"
    TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1 if gpu else common.WORKERS, use_gpu=gpu),
        run_config=RunConfig(
            storage_path=config["work"] + "/runs",
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            **options,
        ),
    ).fit()


def play_saves(config: dict[str, Any]) -> None:
    fit(save_rounds, config)


def play_memory(config: dict[str, Any]) -> None:
    fit(memory_of, config)


def play_loads(config: dict[str, Any]) -> None:
    fit(load_rounds, config)


def play_ray(config: dict[str, Any]) -> None:
    from ray.train import CheckpointConfig

    common.ray_fit(ray_rounds, config, checkpoint_config=CheckpointConfig(num_to_keep=1))


def ray_rounds(config: dict[str, Any]) -> None:
    """Ray Train: the user writes with torch.save, and reports the directory."""
    import torch
    from ray import train

    model, optimizer = build(config)
    rank = train.get_context().get_world_rank()
    for number in range(config["rounds"] + 1):
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=config["work"]) as folder:
            checkpoint = None
            if rank == 0:
                content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(content, os.path.join(folder, "state.pt"))
                checkpoint = train.Checkpoint.from_directory(folder)
            train.report({}, checkpoint=checkpoint)
        if rank == 0 and number:
            common.emit(config["out"], way="Ray Train", blocked=time.perf_counter() - began)


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """Two workers, 256 MB."""
    rounds = bench.times(9, 2)
    bench.say("256 MB of state on two workers, every way in turn")
    with bench.program(FILE, "saves", device="cpu", rounds=rounds) as program:
        program.wait(600.0)  # some of the peers take seconds each time
        records = program.records()

    def of(way: str, key: str) -> list[float]:
        return [r[key] for r in records if r["way"] == way and not r.get("first") and key in r]

    def against(way: str) -> Against:
        failed = [r["failed"] for r in records if r["way"] == way and "failed" in r]
        if failed:
            return Against(way, [], note=f"failed: {failed[0].splitlines()[0]}")
        return Against(way, of(way, "blocked"), in_turn=True)

    peers = [
        Against(
            "a memory copy",
            of("copy", "blocked"),
            Reach(1 / 1.5, "1.5 times as long"),
            in_turn=True,
        ),
        *map(
            against,
            (
                "torch.save",
                "Lightning Fabric.save",
                "dcp.save",
                "dcp.async_save",
                "dcp.async_save, staged in a thread",
            ),
        ),
        bench.peer(
            "Ray Train with torch.save",
            lambda: [
                record["blocked"]
                for record in bench.run(
                    FILE, "ray", launcher="ray", device="cpu", rounds=bench.times(5, 1)
                )[2]
            ],
        ),
    ]
    bench.say("the memory of a rank while a state is saved")
    extra = {
        way: [
            record["more"]
            for _ in range(bench.times(2, 1))
            for record in bench.run(FILE, "memory", device="cpu", way=way, rounds=1)[2]
        ]
        for way in ("lockstep", "dcp.async_save")
    }
    bench.say("restoring, in turn with torch.load(mmap=True)")
    loads = bench.run(FILE, "loads", device="cpu", rounds=rounds)[2]

    def loaded(way: str, key: str) -> list[float]:
        return [r[key] for r in loads if r["way"] == way][::2]  # of one rank

    return [
        Measurement(
            "256 MB of state: report() blocks", "s", of("lockstep", "blocked"), None, peers
        ),
        Measurement(
            "256 MB of state: report(), processor time of the training's thread",
            "s",
            of("lockstep", "worked"),
            None,
            [
                Against(
                    "a memory copy",
                    of("copy", "worked"),
                    Reach(1 / 1.5, "1.5 times as long"),
                    in_turn=True,
                ),
                Against("torch.save", of("torch.save", "worked"), in_turn=True),
            ],
        ),
        Measurement(
            "256 MB of state: report() to committed",
            "s",
            of("lockstep", "done"),
            None,
            [Against("write and flush", of("write and flush", "done"), None, in_turn=True)],
        ),
        Measurement(
            "256 MB of state: memory of a rank beyond the training's own",
            "MB",
            extra["lockstep"],
            Reach(256 * 1.05, "one copy of the state, 256 MB"),
            [Against("dcp.async_save", extra["dcp.async_save"])],
        ),
        Measurement(
            "256 MB of state: restore",
            "s",
            loaded("lockstep", "load"),
            None,
            [
                Against(
                    "torch.load(mmap=True)",
                    loaded("torch.load", "load"),
                    Reach(0.9, "not slower"),
                )
            ],
        ),
        Measurement(
            "256 MB of state: restore, processor time",
            "s",
            loaded("lockstep", "worked"),
            None,
            [
                Against(
                    "torch.load(mmap=True)",
                    loaded("torch.load", "worked"),
                    Reach(0.9, "not slower"),
                )
            ],
        ),
    ]


def play_gpu(path: str) -> None:
    """Everything on this machine's GPU, as a table in a file."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as work:

        def run(function: Callable[..., Any], **more: Any) -> list[dict[str, Any]]:
            options = more.pop("options", {})
            out = os.path.join(work, f"{function.__name__}-{len(lines)}.jsonl")
            config = {"device": "cuda", "work": work, "out": out, **more}
            fit(function, config, verbose=0, **options)
            return [json.loads(line) for line in Path(out).read_text().splitlines()]

        def say(line: str) -> None:
            print(line, flush=True)
            lines.append(line)
            Path(path).write_text("\n".join(lines) + "\n")

        import torch

        say(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
        records = run(save_rounds, rounds=7)
        say(f"state: {records[0]['nbytes'] / 2**30:.2f} GiB")
        say("| way | returns after, s | GPU idle again, s | first time, s | on storage, s |")
        say("|---|---|---|---|---|")
        for way in dict.fromkeys(record["way"] for record in records):
            own = [r for r in records if r["way"] == way and not r.get("first")]
            first = next((r["blocked"] for r in records if r["way"] == way and r.get("first")), 0.0)
            values = [_middle(own, key) for key in ("returned", "blocked")]
            say(f"| {way} | {values[0]} | {values[1]} | {first:.3f} | {_middle(own, 'done')} |")
            for record in own:
                if "failed" in record:
                    say(f"{way} failed: {record['failed']}")
        records = run(load_rounds, rounds=5)
        for way in ("lockstep", "torch.load"):
            say(f"restore, {way}: {_middle([r for r in records if r['way'] == way], 'load')} s")
        records = run(throughput, rounds=3)
        with_, without = (
            [record["rate"] for record in records if record["way"] == way]
            for way in ("with", "without")
        )
        pairs = [a / b for a, b in zip(with_, without, strict=True)]
        say(f"steps/s without {without}, with a state every 5 s {with_}: {pairs}")
        from lockstep.train import FailureConfig

        for memory in (False, True) * 2:
            options = {"failure_config": FailureConfig(max_failures=1)}
            records = run(restart, memory=memory, options=options)
            killed = next(r["killed"] for r in records if "killed" in r)
            again = records[-1]
            parts = [f"{key} {again[key] - killed:.2f}" for key in ("built", "loaded", "stepped")]
            where = "unwritten" if memory else "committed"
            say(f"SIGKILL, newest state {where}: {', '.join(parts)} s; step {again['step']}")


def _middle(records: list[dict[str, Any]], key: str) -> str:
    values = [record[key] for record in records if key in record]
    if not values:
        return "-"
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    if sys.argv[1] == "gpu":
        play_gpu(sys.argv[2])
    else:
        common.play(
            {"saves": play_saves, "memory": play_memory, "loads": play_loads, "ray": play_ray}
        )
