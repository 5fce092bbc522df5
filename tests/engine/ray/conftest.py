"""A Ray cluster of two nodes on this machine, and a check that lockstep leaves nothing on it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockstep
from lockstep.engine import Engine, choose_engine
from lockstep.engine.processes import descendants as family
from tests.conftest import (
    SETTLE_SECONDS,
    _command,
    child_processes,
    environment,
    own_threads,
    temporary_directories,
)
from tests.engine.driving import driven, lives

ENTRIES = "lockstep.testing.engine_entries"


def lockstep_processes() -> set[int]:
    """Agents, keepers, fork servers and workers on the nodes, which are this process's children."""
    names = ("ray::AgentActor", "lockstep fork server", "lockstep worker")
    return {
        pid
        for pid, command in child_processes()[1].items()
        if any(name in command for name in names) and lives(pid)
    }


@pytest.fixture(scope="session")
def cluster(ray_cluster: Any) -> str:
    """The address of a cluster with two nodes, each of two CPUs and what Ray takes for two GPUs."""
    return str(ray_cluster.address)


class ExtraNode:
    """A node that a test adds to the cluster, with the label ``extra``. It ends with the test."""

    def __init__(self, cluster: Any, node: Any) -> None:
        self._cluster = cluster
        self.node = node
        self.id = str(node.node_id)
        self.raylet = next(info.process.pid for info in node.all_processes["raylet"])

    def processes(self) -> list[int]:
        """The raylet, and all that it has started."""
        return [self.raylet, *sorted(family(self.raylet))]

    def signal(self, number: int) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """As if the machine lost its power: nobody there can say anything."""
        self.signal(signal.SIGKILL)

    def remove(self) -> None:
        self._cluster.remove_node(self.node, allow_graceful=False)


@pytest.fixture
def add_node(ray_cluster: Any) -> Iterator[Callable[[], ExtraNode]]:
    """Adds a node of two CPUs to the cluster."""
    added: list[ExtraNode] = []

    def add() -> ExtraNode:
        node = ray_cluster.add_node(
            num_cpus=2, object_store_memory=80 << 20, labels={"extra": "yes"}
        )
        added.append(ExtraNode(ray_cluster, node))
        return added[-1]

    yield add
    for one in added:
        one.signal(signal.SIGCONT)
        one.remove()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Ray's own object for the cluster."""
    variables = dict(os.environ)
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()
        for name in os.environ.keys() - variables.keys():
            if name.startswith("RAY_") or name == "PYTHONBREAKPOINT":
                del os.environ[name]  # Ray has set it


@pytest.fixture(scope="session", autouse=True)
def warm(cluster: str) -> Iterator[None]:
    """The engine, with its agents started, so that no test pays for it."""
    lockstep.init(engine="ray", address=cluster)
    with driven(choose_engine("ray"), f"{ENTRIES}:who", 4, preload=(ENTRIES,)) as run:
        run.until_ended()
    yield
    lockstep.shutdown()


@pytest.fixture
def engine() -> Engine:
    return choose_engine("ray")


@pytest.fixture(autouse=True)
def no_leaks(session_environment: None) -> Iterator[None]:
    """What ``no_leaks`` of all tests checks, less what Ray opens in this process as it likes."""
    threads, variables, directories = own_threads(), environment(), temporary_directories()
    yield
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        left = [_command(pid) for pid in lockstep_processes() if "worker)" in _command(pid)]
        left += [f"thread {t.name!r}" for t in own_threads() - threads if "lockstep" in t.name]
        left += sorted(temporary_directories() - directories)
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    left += [
        f"environment variable {name} changed"
        for name in sorted(environment().keys() | variables.keys())
        if not name.startswith(("RAY_", "PYTHONBREAKPOINT"))
        and environment().get(name) != variables.get(name)
    ]
    assert not left, "this test left behind: " + "; ".join(left)
