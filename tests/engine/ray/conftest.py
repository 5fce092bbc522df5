"""A Ray cluster of two nodes on this machine, and a check that lockstep leaves nothing on it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.conftest import (
    SETTLE_SECONDS,
    _command,
    descendants,
    environment,
    own_threads,
    temporary_directories,
)
from tests.engine.driving import lives


def lockstep_processes() -> set[int]:
    """Agents, keepers, fork servers and workers on the nodes, which are this process's children."""
    names = ("ray::AgentActor", "lockstep fork server", "lockstep worker")
    return {
        pid
        for pid, command in descendants().items()
        if any(name in command for name in names) and lives(pid)
    }


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a cluster with two nodes, each of two CPUs and what Ray takes for two GPUs."""
    variables = dict(os.environ)
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()
        for name in os.environ.keys() - variables.keys():
            if name.startswith("RAY_") or name == "PYTHONBREAKPOINT":
                del os.environ[name]  # Ray has set it


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
