"""How much memory does an idle run of two workers take, over all its processes?"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import common
from common import Against, Bench, Measurement, ProgramFailed, Reach

FILE = "memory.py"
SETTLE_S = 1.0


# Programs. Workers say that they are there and wait for a file to appear.


def idle(config: dict[str, Any]) -> None:
    import torch.distributed as dist

    common.emit(config["out"], rank=dist.get_rank())
    release = os.path.join(config["work"], "release")
    deadline = time.monotonic() + common.PROGRAM_TIMEOUT_S
    while not os.path.exists(release) and time.monotonic() < deadline:
        time.sleep(0.05)


def play_lockstep(config: dict[str, Any]) -> None:
    common.lockstep_fit(idle, config)


def play_ray(config: dict[str, Any]) -> None:
    common.ray_fit(idle, config)


def play_torchrun(config: dict[str, Any]) -> None:
    import torch.distributed as dist

    common.torchrun_group()
    idle(config)
    dist.destroy_process_group()


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """The proportional set size: a page that n processes share counts 1/n in each."""
    bench.say("memory of an idle run: lockstep and torchrun in turn")
    strangers = _with_torch()
    if strangers:
        bench.say(
            f"  {len(strangers)} other processes have torch loaded: shared pages count less now"
        )
    sizes: dict[str, list[float]] = {"lockstep": [], "torchrun": []}
    for _ in range(bench.times(5, 2)):
        for system in sizes:
            launcher = "torchrun" if system == "torchrun" else "python"
            sizes[system].append(megabytes(bench, system, launcher))
    times = bench.times(2, 1)
    return [
        Measurement(
            "PSS of an idle run, all processes",
            "MB",
            sizes["lockstep"],
            against=[
                Against("torchrun", sizes["torchrun"], Reach(1.0, "below")),
                bench.peer(
                    "Ray Train",
                    lambda: [megabytes(bench, "ray", "ray") for _ in range(times)],
                    Reach(4.0, "a quarter"),
                ),
            ],
        )
    ]


def megabytes(bench: Bench, system: str, launcher: str, file: str = FILE, **config: Any) -> float:
    """The memory of one idle run."""
    with bench.program(file, system, launcher=launcher, **config) as program:
        program.wait_for_records(common.WORKERS)
        time.sleep(SETTLE_S)
        pids = program.processes()
        total = common.pss_megabytes(pids)
        bench.say(f"    {system}: {len(pids)} processes, {total:.0f} MB")
        (program.work / "release").touch()
        program.wait()
    if not total:
        raise ProgramFailed("no process of it could be read in /proc")
    return total


def _with_torch() -> list[int]:
    """Processes, of anyone we may look at, that have torch's libraries mapped."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if "libtorch_cpu" in (entry / "maps").read_text():
                found.append(int(entry.name))
    return found


if __name__ == "__main__":
    common.play({"lockstep": play_lockstep, "ray": play_ray, "torchrun": play_torchrun})
