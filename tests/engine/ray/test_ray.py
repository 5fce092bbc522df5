"""The Ray engine on a real cluster of two nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.config import FailureConfig, RunConfig, ScalingConfig
from lockstep.engine import Engine, GroupSpec
from lockstep.errors import InsufficientResourcesError
from lockstep.testing import EngineConformance
from lockstep.train import Checkpoint, DataParallelTrainer
from tests.engine.driving import driven, lives, wait_until
from tests.engine.ray.conftest import lockstep_processes

# A cluster's nodes, agents and fork servers start slowly where two cores run everything.
pytestmark = [pytest.mark.environment("ray"), pytest.mark.timeout(180)]

ENTRIES = "lockstep.testing.engine_entries"


class TestRayEngine(EngineConformance):
    """The contract of all engines."""


def test_what_does_not_fit_says_what_the_cluster_has(engine: Engine) -> None:
    spec = GroupSpec(size=3, entry="", payload=b"", cpus_per_worker=2.0)
    with pytest.raises(InsufficientResourcesError) as raised:
        engine.check(spec)
    text = str(raised.value)
    assert "3 worker(s) with 2 CPU each do not fit" in text
    assert "2 node(s)" in text
    # The driver of another test may have been killed just now: Ray takes a while to free its room.
    wait_until(lambda: engine.capacity(spec) == 2, 60)


def test_each_worker_sees_the_gpus_of_its_bundle(engine: Engine) -> None:
    spec: dict[str, Any] = {"preload": (ENTRIES,), "payload": b"CUDA_VISIBLE_DEVICES"}
    with driven(engine, f"{ENTRIES}:environment", 3, gpus_per_worker=1, **spec) as run:
        run.until_ended()
        seen = [messages[0]["CUDA_VISIBLE_DEVICES"] for messages in run.messages]
    # Two on one node, which are different, and one on the other.
    assert set(seen) == {"0", "1"}
    with driven(engine, f"{ENTRIES}:environment", 1, **spec) as run:
        run.until_ended()
        assert run.messages[0] == [{"CUDA_VISIBLE_DEVICES": None}]


def test_a_group_waits_for_room(engine: Engine) -> None:
    spec: dict[str, Any] = {"preload": (ENTRIES,), "cpus_per_worker": 2.0}
    with driven(engine, f"{ENTRIES}:echo", 2, **spec) as first:
        first.until_told()
        with driven(engine, f"{ENTRIES}:echo", 1, **spec) as second:
            second.until(lambda: bool(second.notices))
            assert "1 worker(s) with 2 CPU each are not free on the Ray" in second.notices[0]
            assert second.group.waits_for_room
            assert "not free" in second.group.problem(0)
            assert not second.messages[0]
            first.group.close()
            second.until_told()


def test_ray_client_is_refused(engine: Engine) -> None:
    code = (
        "import lockstep; from lockstep.engine import choose_engine, GroupSpec; "
        "lockstep.init(engine='ray', address='ray://127.0.0.1:1'); "
        "choose_engine('ray').check(GroupSpec(1, '', b''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "ray job submit --working-dir . -- python" in done.stderr


def test_a_ray_of_the_user_s_own_is_used_and_stays(cluster: str) -> None:
    code = f"""
import ray, time, lockstep
from lockstep.engine import choose_engine, GroupSpec
ray.init({cluster!r}, log_to_driver=False)
lockstep.init(engine="ray")
engine = choose_engine("ray")
# The test's own driver may keep some room for a moment. Another test may have added a node.
while engine.capacity(GroupSpec(1, "", b"")) < 4:
    time.sleep(0.05)
print("room for four")
lockstep.shutdown()
print("still", ray.is_initialized())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    # Ray may print of a node that another test has killed.
    lines = [line for line in done.stdout.splitlines() if line.startswith(("room", "still"))]
    assert lines == ["room for four", "still True"], done.stderr


def test_an_agent_that_died_is_replaced(engine: Any) -> None:
    import ray

    for agent in list(engine._agents.values()):
        ray.kill(agent)
    with driven(engine, f"{ENTRIES}:who", 2, preload=(ENTRIES,)) as run:
        assert run.until_ended() == [0, 0]


def test_a_lost_agent_is_told_at_once(engine: Any) -> None:
    import ray

    with driven(engine, f"{ENTRIES}:sleep", 2, preload=(ENTRIES,)) as run:
        run.until_told()
        for agent in list(engine._agents.values()):
            ray.kill(agent)
        assert run.until_ended() == [None, None]
        assert "has ended; the node itself answers" in run.exits[0].detail


def place(config: dict[str, Any]) -> None:
    import torch.distributed as dist

    context = train.get_context()
    print(f"rank {context.get_world_rank()} speaks")
    here = (
        context.get_local_rank(),
        context.get_local_world_size(),
        context.get_node_rank(),
        os.environ["MASTER_ADDR"],
    )
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, here)
    train.report({"places": str(everywhere)})


def test_ranks_and_logs_on_two_nodes(tmp_path: Path) -> None:
    from lockstep.train.torch import TorchTrainer

    result = TorchTrainer(
        place,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=3, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    places = eval(result.metrics["places"])  # a list of tuples, printed by this test
    assert len({address for *_, address in places}) == 1
    assert [(local, size, node) for local, size, node, _ in places] in (
        [(0, 2, 0), (1, 2, 0), (0, 1, 1)],
        [(0, 1, 0), (0, 2, 1), (1, 2, 1)],
    )
    logs = Path(result.path) / "logs"
    for rank in range(3):
        assert (logs / f"rank_{rank}.log").read_text() == f"rank {rank} speaks\n"


def survive(config: dict[str, Any]) -> None:
    import torch

    context, checkpoint = train.get_context(), train.get_checkpoint()
    start = 0 if checkpoint is None else checkpoint.to_dict()["step"] + 1
    for step in range(start, 4):
        kept = Checkpoint.from_dict({"step": step}) if context.get_world_rank() == 0 else None
        train.report({"step": step, "start": start}, checkpoint=kept)
        torch.distributed.barrier()
        if checkpoint is None and step == 1 and context.get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_restarts_the_run_from_its_checkpoint(tmp_path: Path) -> None:
    from lockstep.train.torch import TorchTrainer

    result = TorchTrainer(
        survive,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 2}),
        run_config=RunConfig(
            storage_path=str(tmp_path), verbose=0, failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    assert result.metrics["step"] == 3
    assert result.metrics["start"] == 2
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 3


def wait_until_asked(folder: Path) -> None:
    while not (folder / "asked").exists():
        time.sleep(0.01)


def be_late(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 1:
        wait_until_asked(Path(config["folder"]))
    train.report({"loss": 0.5})


# On another machine than all workers: it must ask the cluster.
ELSEWHERE = """
import socket, sys
socket.gethostname = lambda: "elsewhere"
from lockstep.cli import main
sys.exit(main(["stack", sys.argv[1]]))
"""


def test_stacks_of_workers_on_other_machines(tmp_path: Path) -> None:
    printed: list[subprocess.CompletedProcess[str]] = []

    def ask() -> None:
        # The hang is diagnosed first: the driver has asked rank 1, on its node.
        def diagnosed() -> bool:
            logs = list(tmp_path.glob("**/logs/rank_1.log"))
            return bool(logs) and "in wait_until_asked" in logs[0].read_text()

        wait_until(diagnosed, 120)
        (run,) = tmp_path.glob("**/journal.jsonl")
        command = [sys.executable, "-c", ELSEWHERE, str(run.parent)]
        printed.append(subprocess.run(command, capture_output=True, text=True, check=False))
        (tmp_path / "asked").touch()

    thread = threading.Thread(target=ask)
    thread.start()
    result = DataParallelTrainer(
        be_late,
        train_loop_config={"folder": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0, hang_warning_s=0.5),
    ).fit()
    thread.join()
    assert result.metrics["loss"] == 0.5
    (done,) = printed
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("\nRank ")
    assert "Rank 0 (pid " in first
    assert "in report" in first
    assert second.startswith("1 (pid ")
    assert "in wait_until_asked" in second
    assert "time.sleep(0.01)" in second or "while not" in second


DRIVER = """
import sys, os, lockstep
from lockstep.engine import choose_engine, GroupSpec
from lockstep.engine.base import WorkerMessage
from lockstep.engine.loop import EventLoop
lockstep.init(engine="ray", address=sys.argv[1])
class Sink:
    def write(self, rank, data): pass
    def tick(self): return None
    def close(self): pass
def tell(event):
    if isinstance(event, WorkerMessage):
        print(event.message, flush=True)
spec = GroupSpec(2, "lockstep.testing.engine_entries:start_child", b"", cpus_per_worker=2.0)
loop = EventLoop()
group = choose_engine("ray").start(spec, loop, tell, Sink())
loop.run_until(lambda: False)
"""


def test_no_process_is_left_when_the_driver_is_killed(cluster: str) -> None:
    before = lockstep_processes()
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        children: list[int] = []
        for line in driver.stdout:  # Ray may print of a node that another test has killed
            children += [int(line)] if line.strip().isdigit() else []
            if len(children) == 2:
                break
        assert all(map(lives, children))
        started = lockstep_processes() - before
        assert len(started) >= 8  # on each node: agent, keeper, server, worker
        driver.kill()
    wait_until(lambda: not any(map(lives, children)))
    wait_until(lambda: not any(map(lives, started)))
