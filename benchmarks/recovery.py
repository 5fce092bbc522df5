"""How long from the SIGKILL of a worker until the restarted function runs on all, group ready?"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import common
from common import Against, Bench, Measurement, ProgramFailed, Reach

FILE = "recovery.py"
LIMIT_S = 60.0


# Programs. In the first attempt rank 1 kills itself while rank 0 waits for it in an allreduce.


def train(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    mark = config["work"] + f"/was-here-{rank}"
    first = not os.path.exists(mark)
    common.emit(config["out"], first=first, rank=rank, ready=time.monotonic())
    if not first:
        return
    open(mark, "w").close()
    for _ in range(5):
        dist.all_reduce(torch.ones(1))
    if rank == 1:
        common.emit(config["out"], killed=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(10**6):
        dist.all_reduce(torch.ones(1))


def play_lockstep(config: dict[str, Any]) -> None:
    from lockstep.train import FailureConfig

    common.lockstep_fit(train, config, failure_config=FailureConfig(max_failures=1))


def play_ray(config: dict[str, Any]) -> None:
    from ray.train import FailureConfig

    common.ray_fit(train, config, failure_config=FailureConfig(max_failures=1))


def play_torchrun(config: dict[str, Any]) -> None:
    common.torchrun_group()
    train(config)


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """The same fault under each, several times; how often one did not recover is said, too."""
    bench.say("a worker is killed: lockstep and torchrun in turn")
    ours: list[float | None] = []
    torchrun: list[float | None] = []
    for _ in range(bench.times(9, 2)):
        ours.append(once(bench, "lockstep"))
        torchrun.append(
            once(
                bench,
                "torchrun",
                launcher="torchrun",
                flags=["--max-restarts=1"],
                env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            )
        )
    if None in ours:
        raise ProgramFailed(f"lockstep did not recover in {ours.count(None)} of {len(ours)} tries")
    peers = [_against("torchrun", torchrun, Reach(6, "6 times faster"))]
    if bench.peers_python is None:
        peers.append(Against("Ray Train", [], note="no environment with Ray: run make bench"))
    else:
        for name, env, reach in (
            ("Ray Train", {}, Reach(15, "15 times faster")),
            ("Ray Train, 10 ms poll", {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.01"}, None),
        ):
            bench.say(f"  {name}")
            tries = [once(bench, "ray", launcher="ray", env=env) for _ in range(bench.times(3, 1))]
            peers.append(_against(name, tries, reach))
    return [
        Measurement(
            "SIGKILL of a worker to the restarted function on all, group ready",
            "s",
            [seconds for seconds in ours if seconds is not None],
            Reach(0.3, "0.3 s"),
            peers,
        )
    ]


def once(
    bench: Bench, role: str, file: str = FILE, limit: float = LIMIT_S, **options: Any
) -> float | None:
    """Seconds to recover; None if it did not."""
    with bench.program(file, role, **options) as program:
        try:
            program.wait(limit)
        except ProgramFailed as error:
            bench.say(f"  {role} did not recover: {str(error).splitlines()[0]}")
        records = program.records()
    killed = [record["killed"] for record in records if "killed" in record]
    again = [record["ready"] for record in records if record.get("first") is False]
    if len(killed) != 1 or len(again) != common.WORKERS:
        return None
    return float(max(again) - killed[0])


def _against(system: str, tries: list[float | None], reach: Reach | None) -> Against:
    lost = tries.count(None)
    name = f"{system} (not recovered: {lost} of {len(tries)})" if lost else system
    return Against(name, [s for s in tries if s is not None], reach, "never recovered")


if __name__ == "__main__":
    common.play({"lockstep": play_lockstep, "ray": play_ray, "torchrun": play_torchrun})
