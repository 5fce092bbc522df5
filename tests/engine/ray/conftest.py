"""A Ray cluster of two nodes on this machine, and a check that lockstep leaves nothing on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SETTLE_SECONDS, environment, own_threads, temporary_directories


def lockstep_processes() -> dict[int, str]:
    """Workers, fork servers and keepers on this machine, whoever is their parent."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parent = (entry / "status").read_text()
            except OSError:
                continue
            if "(lockstep worker)" in command and "State:\tZ" not in parent:
                found[int(entry.name)] = command
    return found


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a cluster with two nodes, each of two CPUs and what Ray takes for two GPUs."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.fixture(autouse=True)
def no_leaks(session_environment: None) -> Iterator[None]:
    """What ``no_leaks`` of all tests checks, less what Ray opens in this process as it likes."""
    threads, variables, directories = own_threads(), environment(), temporary_directories()
    workers = lockstep_processes()
    yield
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        left = [
            f"process {pid}: {c}" for pid, c in lockstep_processes().items() if pid not in workers
        ]
        left += [f"thread {t.name!r}" for t in own_threads() - threads if "lockstep" in t.name]
        left += sorted(temporary_directories() - directories)
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    left += [
        f"environment variable {name} changed"
        for name in sorted(environment().keys() | variables.keys())
        if not name.startswith("RAY_") and environment().get(name) != variables.get(name)
    ]
    assert not left, "this test left behind: " + "; ".join(left)
