"""What does lockstep cost on a Ray cluster? Two workers on two raylets of this machine.

Ray Train runs on the same cluster, from the same interpreter, which has both.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common
from common import Against, Bench, Measurement, Program, ProgramFailed, Reach

FILE = "cluster.py"
LIMIT_S = 300.0
CLUSTER_S = 3600.0
"""How long a cluster may be needed; it is ended before."""
REPORTS = 2000
REPORTS_OF_RAY = 20
TRIALS = 100


# Programs. The first is the cluster, the others are drivers on it.


def play_cluster(config: dict[str, Any]) -> None:
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    second = cluster.add_node(**node)
    cluster.wait_for_nodes()
    raylet = second.all_processes["raylet"][0].process.pid
    common.emit(config["out"], address=cluster.address, raylet=raylet)
    time.sleep(CLUSTER_S)


def say_ready(config: dict[str, Any]) -> None:
    import torch.distributed as dist

    dist.barrier()
    rank = dist.get_rank()
    common.emit(config["out"], ready=time.monotonic(), rank=rank, size=dist.get_world_size())


def train(config: dict[str, Any]) -> None:
    say_ready(config)


def be_killed(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    say_ready(config)
    mark = Path(config["work"], f"was-here-{dist.get_rank()}")
    if mark.exists():
        return
    mark.touch()
    dist.barrier()
    if dist.get_rank() == 1:
        common.emit(config["out"], killed=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(10**6):
        dist.all_reduce(torch.ones(1))


def wait_for_loss(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    say_ready(config)
    while dist.get_world_size() == 2:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.05)


def report_often(config: dict[str, Any]) -> None:
    report, rank = _api(config)
    say_ready(config)
    report({"loss": 0.0})
    begun = time.monotonic()
    for step in range(config["reports"]):
        report({"loss": 0.5, "accuracy": 0.25, "step": step})
    if rank() == 0:
        common.emit(config["out"], rate=config["reports"] / (time.monotonic() - begun))


def _api(config: dict[str, Any]) -> tuple[Any, Any]:
    if config["system"] == "ray":
        from ray.train import get_context, report
    else:
        from lockstep.train import get_context, report
    return report, lambda: get_context().get_world_rank()


FUNCTIONS = {"train": train, "kill": be_killed, "lose": wait_for_loss, "report": report_often}


def play_driver(config: dict[str, Any]) -> None:
    """``fits``: what to fit, one after the other, in this driver."""
    if config["system"] in ("trials", "local trials"):
        _trials(config)
        return
    for name in config["fits"]:
        common.emit(config["out"], fit=name, called=time.monotonic())
        _fit(config, name)


def _fit(config: dict[str, Any], name: str) -> None:
    size: Any = (1, 2) if name == "lose" else 2
    if config["system"] == "ray":
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        if not ray.is_initialized():
            ray.init(config["address"], log_to_driver=False, logging_level=40)
        scaling: Any = ScalingConfig(num_workers=size, placement_strategy="SPREAD")
    else:
        import lockstep
        from lockstep.train import FailureConfig, RunConfig, ScalingConfig
        from lockstep.train.torch import TorchTrainer

        if config["system"] == "lockstep":
            lockstep.init(engine="ray", address=config["address"])
        scaling = ScalingConfig(num_workers=size)
    TorchTrainer(
        FUNCTIONS[name],
        train_loop_config=config,
        scaling_config=scaling,
        run_config=RunConfig(
            storage_path=config["work"] + "/runs",
            failure_config=FailureConfig(max_failures=2 if name in ("kill", "lose") else 0),
        ),
    ).fit()


def _trials(config: dict[str, Any]) -> None:
    import lockstep
    from lockstep import tune

    if config["system"] == "trials":
        lockstep.init(engine="ray", address=config["address"])
    else:
        lockstep.init(num_cpus=2)  # as many as the cluster has

    def objective(settings: dict[str, Any]) -> dict[str, float]:
        return {"loss": settings["x"]}

    def search(count: int) -> float:
        begun = time.monotonic()
        tune.Tuner(
            objective,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(num_samples=count, metric="loss", mode="min"),
            run_config=lockstep.train.RunConfig(storage_path=config["work"] + "/runs", verbose=0),
        ).fit()
        return time.monotonic() - begun

    search(4)  # the agents and their fork servers are warm then
    common.emit(config["out"], rate=TRIALS / search(TRIALS))


# Measuring.


@contextmanager
def _cluster(bench: Bench) -> Iterator[tuple[Program, dict[str, Any]]]:
    with bench.program(FILE, "cluster", launcher="ray") as program:
        program.wait_for_records(1)
        yield program, program.records()[0]


def measure(bench: Bench) -> list[Measurement]:
    """Every row on a fresh cluster; ours and Ray Train's in turn."""
    if bench.peers_python is None:
        raise ProgramFailed("no environment with Ray: run make bench")
    systems = ("lockstep", "ray")
    first: dict[str, list[float]] = {system: [] for system in systems}
    second: dict[str, list[float]] = {system: [] for system in systems}
    killed: dict[str, list[float]] = {system: [] for system in systems}
    rates: dict[str, list[float]] = {system: [] for system in (*systems, "local")}
    trials: dict[str, list[float]] = {"trials": [], "local trials": []}
    for _ in range(bench.times(3, 1)):
        with _cluster(bench) as (_, cluster):
            for system in systems:
                bench.say(f"  starts, a killed worker: {system}")
                records = _drive(bench, system, cluster, ["train", "train", "kill"])
                calls = [record["called"] for record in records if "called" in record]
                ready = [record["ready"] for record in records if "ready" in record]
                died = [record["killed"] for record in records if "killed" in record]
                first[system].append(max(ready[:2]) - calls[0])
                second[system].append(max(ready[2:4]) - calls[1])
                killed[system].append(max(ready[6:8]) - died[0])
            for system in rates:
                bench.say(f"  reports: {system}")
                count = REPORTS_OF_RAY if system == "ray" else REPORTS
                records = _drive(bench, system, cluster, ["report"], reports=count)
                rates[system] += [record["rate"] for record in records if "rate" in record]
            for system, found in trials.items():
                bench.say(f"  {system}")
                records = _drive(bench, system, cluster, [])
                found += [record["rate"] for record in records if "rate" in record]
    lost = {system: [_lose(bench, system) for _ in range(bench.times(3, 1))] for system in systems}
    frozen = [_lose(bench, "lockstep", freeze=True) for _ in range(bench.times(3, 1))]

    def against(samples: dict[str, list[float]], times: float) -> list[Against]:
        reach = Reach(times, f"{times:g} times faster")
        return [Against("Ray Train", samples["ray"], reach, in_turn=samples is not lost)]

    return [
        Measurement(
            "on a cluster: first fit() of a driver to the first line, group ready",
            "s",
            first["lockstep"],
            against=against(first, 3),
        ),
        Measurement(
            "on a cluster: second fit() to the first line, group ready",
            "s",
            second["lockstep"],
            Reach(0.2, "0.2 s"),
            against(second, 40),
        ),
        Measurement(
            "on a cluster: report() of a few floats",
            "/s",
            rates["lockstep"],
            against=[
                Against(
                    "the local engine", rates["local"], Reach(0.5, "half as many"), in_turn=True
                ),
                Against("Ray Train", rates["ray"], in_turn=True),
            ],
        ),
        Measurement(
            "on a cluster: SIGKILL of a worker to the restarted function on all",
            "s",
            killed["lockstep"],
            Reach(0.5, "0.5 s"),
            against(killed, 10),
        ),
        Measurement(
            "on a cluster: SIGKILL of a raylet, elastic, to the restarted function on the rest",
            "s",
            lost["lockstep"],
            Reach(3.0, "3 s"),
            against(lost, 5),
        ),
        Measurement(
            "on a cluster: a frozen node, elastic, to the restarted function on the rest",
            "s",
            frozen,
            Reach(8.0, "8 s"),
        ),
        Measurement(
            "on a cluster: trials of a function that does nothing",
            "/s",
            trials["trials"],
            Reach(30, "30"),
            [Against("the local engine", trials["local trials"], in_turn=True)],
        ),
    ]


def _drive(
    bench: Bench, system: str, cluster: dict[str, Any], fits: list[str], **more: Any
) -> list[dict[str, Any]]:
    options = {"system": system, "address": cluster["address"], "fits": fits, **more}
    with bench.program(FILE, "driver", launcher="ray", **options) as program:
        program.wait(LIMIT_S)
        return program.records()


def _lose(bench: Bench, system: str, *, freeze: bool = False) -> float:
    """Seconds from the loss of a node to the restarted function on the other one."""
    bench.say(f"  a node is {'frozen' if freeze else 'killed'}: {system}")
    with _cluster(bench) as (_, cluster):
        options = {"system": system, "address": cluster["address"], "fits": ["lose"]}
        with bench.program(FILE, "driver", launcher="ray", **options) as program:
            program.wait_for_records(3, LIMIT_S)  # the call, and both ranks
            time.sleep(1.0)
            lost = time.monotonic()
            if freeze:
                for pid in _family(cluster["raylet"]):
                    os.kill(pid, signal.SIGSTOP)
            else:
                os.kill(cluster["raylet"], signal.SIGKILL)
            program.wait_for_records(4, LIMIT_S)
            return float(program.records()[3]["ready"] - lost)


def _family(pid: int) -> list[int]:
    found, pending = [pid], [pid]
    while pending:
        for task in Path(f"/proc/{pending.pop()}/task").glob("*/children"):
            below = [int(text) for text in task.read_text().split()]
            found += below
            pending += below
    return found


if __name__ == "__main__":
    common.play({"cluster": play_cluster, "driver": play_driver})
