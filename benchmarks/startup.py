"""How long until training begins, and how long does a run take that does nothing?"""

from __future__ import annotations

import json
import time
from typing import Any

import common
from common import Against, Bench, Measurement, Reach

FILE = "startup.py"


# Programs. Each does nothing on two workers whose process group is ready.


def first_line(config: dict[str, Any]) -> None:
    moment = time.monotonic()
    import torch.distributed as dist

    assert dist.get_world_size() == common.WORKERS
    common.emit(config["out"], fit=config["fit"], ready=moment)


def play_lockstep(config: dict[str, Any]) -> None:
    _fits(common.lockstep_fit, config)


def play_script(config: dict[str, Any]) -> None:
    """As a user's script: it imports torch at its top."""
    import torch  # noqa: F401

    _fits(common.lockstep_fit, config)


def play_ray(config: dict[str, Any]) -> None:
    _fits(common.ray_fit, config)


def _fits(fit: Any, config: dict[str, Any]) -> None:
    for number in range(config["fits"]):
        called = time.monotonic()
        fit(first_line, {**config, "fit": number})
        common.emit(config["out"], fit=number, called=called, seconds=time.monotonic() - called)


def play_torchrun(config: dict[str, Any]) -> None:
    import torch.distributed as dist

    common.torchrun_group()
    first_line({**config, "fit": 0})
    dist.destroy_process_group()


def play_spawn(config: dict[str, Any]) -> None:
    import torch.multiprocessing as mp

    spawn: Any = mp.spawn  # type: ignore[attr-defined]
    spawn(_spawned, args=(config,), nprocs=common.WORKERS)


def _spawned(rank: int, config: dict[str, Any]) -> None:
    import torch.distributed as dist

    store = "file://" + config["work"] + "/rendezvous"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=common.WORKERS)
    first_line({**config, "fit": 0})
    dist.destroy_process_group()


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """Cold scripts in turn with the peers, then fits in a process that has fitted before."""
    return [*_cold(bench), *_warm(bench), *_run(bench)]


def _cold(bench: Bench) -> list[Measurement]:
    bench.say("cold scripts: lockstep, torchrun and mp.spawn in turn")
    systems = (("lockstep", "python"), ("torchrun", "torchrun"), ("spawn", "python"))
    whole: dict[str, list[float]] = {name: [] for name, _ in systems}
    first: dict[str, list[float]] = {name: [] for name, _ in systems}
    for name, launcher in systems:  # once untimed: files into the page cache
        bench.run(FILE, name, launcher=launcher, fits=1)
    for _ in range(bench.times(7, 2)):
        for name, launcher in systems:
            started, seconds, records = bench.run(FILE, name, launcher=launcher, fits=1)
            whole[name].append(seconds)
            first[name].append(ready(records, 0) - started)
    ray_first: list[float] = []

    def ray() -> list[float]:
        samples = []
        for _ in range(bench.times(2, 1)):
            started, seconds, records = bench.run(FILE, "ray", launcher="ray", fits=1)
            samples.append(seconds)
            ray_first.append(ready(records, 0) - started)
        return samples

    ray_whole = bench.peer("Ray Train", ray)
    not_slower = Reach(1.0, "not slower")
    return [
        Measurement(
            "cold script that does nothing, whole process",
            "s",
            whole["lockstep"],
            against=[
                Against("torchrun", whole["torchrun"], not_slower),
                Against("mp.spawn", whole["spawn"]),
                ray_whole,
            ],
        ),
        Measurement(
            "cold script to the function's first line, group ready",
            "s",
            first["lockstep"],
            against=[
                Against("torchrun", first["torchrun"]),
                Against("mp.spawn", first["spawn"]),
                Against("Ray Train", ray_first, note=ray_whole.note),
            ],
        ),
    ]


def _run(bench: Bench) -> list[Measurement]:
    """``lockstep run`` with a warm server, in turn with torchrun."""
    bench.say("lockstep run from a warm server, in turn with torchrun")
    runtime = bench.work / "runtime"
    runtime.mkdir(mode=0o700)
    variables = {"XDG_RUNTIME_DIR": str(runtime)}
    whole: dict[str, list[float]] = {"lockstep": [], "torchrun": []}
    first: dict[str, list[float]] = {"lockstep": [], "torchrun": []}
    try:
        # The first start is cold; the server is up once it says so.
        bench.run(FILE, "script", launcher="run", fits=1, env=variables)
        memory = _await_server(variables)
        for _ in range(bench.times(9, 3)):
            for name in whole:
                launcher, role = ("run", "script") if name == "lockstep" else (name, name)
                started, seconds, records = bench.run(
                    FILE, role, launcher=launcher, fits=1, env=variables
                )
                whole[name].append(seconds)
                first[name].append(ready(records, 0) - started)
        memory = _await_server(variables)
    finally:
        common.lockstep_command(variables, "warm", "--stop")
    ten = Reach(10, "10 times faster")
    return [
        Measurement(
            "lockstep run, warm: a script that imports torch and does nothing, whole process",
            "s",
            whole["lockstep"],
            Reach(0.35, "0.35 s"),
            [Against("torchrun", whole["torchrun"], in_turn=True)],
        ),
        Measurement(
            "lockstep run, warm: to the function's first line, group ready",
            "s",
            first["lockstep"],
            Reach(0.20, "0.20 s"),
            [Against("torchrun", first["torchrun"], ten, in_turn=True)],
        ),
        Measurement("idle warm server: memory (PSS)", "MB", [memory], Reach(250, "250 MB")),
    ]


def _await_server(variables: dict[str, str]) -> float:
    """Wait until the server listens and nothing of it runs; its memory in MB."""
    deadline = time.monotonic() + common.PROGRAM_TIMEOUT_S
    while time.monotonic() < deadline:
        servers = json.loads(common.lockstep_command(variables, "warm", "--json"))
        if servers and "torch" in servers[0]["packages"] and not servers[0]["running"]:
            return float(servers[0]["memory"]) / (1 << 20)
        time.sleep(0.1)
    raise common.ProgramFailed("the warm server never listened")


def _warm(bench: Bench) -> list[Measurement]:
    bench.say("warm fits in one process")
    fits = 1 + bench.times(15, 5)
    reached, whole = split(bench.run(FILE, "lockstep", fits=fits)[2], fits)
    ray_ready: list[float] = []

    def ray() -> list[float]:
        count = 1 + bench.times(3, 1)
        records = bench.run(FILE, "ray", launcher="ray", fits=count)[2]
        first, seconds = split(records, count)
        ray_ready.extend(first)
        return seconds

    ray_whole = bench.peer("Ray Train", ray)
    return [
        Measurement(
            "later fit(): call to the function's first line, group ready",
            "s",
            reached,
            Reach(0.10, "0.10 s"),
            [Against("Ray Train", ray_ready, Reach(80, "80 times faster"), ray_whole.note)],
        ),
        Measurement(
            "later fit() that does nothing, whole", "s", whole, Reach(0.20, "0.20 s"), [ray_whole]
        ),
    ]


def split(records: list[dict[str, Any]], fits: int) -> tuple[list[float], list[float]]:
    """Of each fit but the first: call to the last rank's first line, and the whole call."""
    calls = {record["fit"]: record for record in records if "called" in record}
    later = range(1, fits)
    first = [ready(records, number) - calls[number]["called"] for number in later]
    return first, [calls[number]["seconds"] for number in later]


def ready(records: list[dict[str, Any]], fit: int) -> float:
    """When the last rank reached its first line."""
    moments = [r["ready"] for r in records if "ready" in r and r["fit"] == fit]
    if len(moments) != common.WORKERS:
        raise common.ProgramFailed(f"{len(moments)} of {common.WORKERS} workers got ready")
    return float(max(moments))


if __name__ == "__main__":
    common.play(
        {
            "lockstep": play_lockstep,
            "script": play_script,
            "ray": play_ray,
            "torchrun": play_torchrun,
            "spawn": play_spawn,
        }
    )
