"""A node of a Ray cluster that the network does not reach any more.

The node is in a network namespace of its own. Cut off means that packets vanish, in both
directions, and nobody is told: as if a cable were pulled out of a switch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.engine import Engine
from lockstep.engine.processes import descendants
from tests.engine.driving import driven, lives, wait_until
from tests.engine.ray.conftest import ENTRIES
from tests.engine.ray.test_nodes import BOTH, see

pytestmark = [pytest.mark.environment("ray"), pytest.mark.timeout(300)]

HERE, THERE = "10.231.7.1", "10.231.7.2"
NOBODY = "02:00:00:00:00:01"


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
    return done.stdout


class FarNode:
    """A raylet in another network, with the label ``extra``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: subprocess.Popen[bytes] | None = None

    def build(self, cluster: str) -> None:
        outer, inner = f"{self.name}a", f"{self.name}b"
        ip("netns", "add", self.name)
        ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", self.name)
        ip("addr", "add", f"{HERE}/30", "dev", outer)
        ip("link", "set", outer, "up")
        ip("-n", self.name, "link", "set", "lo", "up")
        ip("-n", self.name, "addr", "add", f"{THERE}/30", "dev", inner)
        ip("-n", self.name, "link", "set", inner, "up")
        ip("-n", self.name, "route", "add", "default", "via", HERE)
        ray = Path(sys.executable).with_name("ray")
        command = ["ip", "netns", "exec", self.name, str(ray), "start", "--block"]
        command += [f"--address={cluster}", f"--node-ip-address={THERE}", "--num-cpus=2"]
        command += ["--object-store-memory=80000000", "--labels=extra=yes"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def cut(self) -> None:
        ip("neigh", "replace", THERE, "lladdr", NOBODY, "nud", "permanent", "dev", f"{self.name}a")
        inner = ("dev", f"{self.name}b")
        ip("-n", self.name, "neigh", "replace", HERE, "lladdr", NOBODY, "nud", "permanent", *inner)

    def heal(self) -> None:
        ip("neigh", "del", THERE, "dev", f"{self.name}a")
        ip("-n", self.name, "neigh", "del", HERE, "dev", f"{self.name}b")

    def workers(self) -> list[int]:
        assert self.process is not None
        found = descendants(self.process.pid)
        return [pid for pid in found if b"worker)" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def remove(self) -> None:
        if self.process is not None:
            started = [self.process.pid, *descendants(self.process.pid)]
            for pid in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            wait_until(lambda: not any(map(lives, started)))
        subprocess.run(["ip", "link", "del", f"{self.name}a"], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)


@pytest.fixture
def far_node(engine: Engine, cluster: str) -> Iterator[FarNode]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("only root can make a network, with the program ip")
    node = FarNode(f"ls{os.getpid()}")
    try:
        try:
            node.build(cluster)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network can be made here: {error.stderr}")
        see(engine, 6)
        yield node
    finally:
        node.remove()


def test_a_node_that_is_cut_off_is_fenced(engine: Engine, far_node: FarNode) -> None:
    with driven(engine, f"{ENTRIES}:sleep", 2, **BOTH) as run:
        run.until_told()
        workers = far_node.workers()
        assert workers
        far_node.cut()
        run.until(lambda: 1 in run.exits)
        assert f"node {THERE} has not answered for 6 s" in run.exits[1].detail
        assert 0 not in run.exits
        with driven(engine, f"{ENTRIES}:who", 2, preload=(ENTRIES,)) as again:
            assert again.until_ended() == [0, 0]
        far_node.heal()
        # Its workers learn that their connections are closed, and end. The node can be used again.
        wait_until(lambda: not any(map(lives, workers)), 120)
        see(engine, 6)
    with driven(engine, f"{ENTRIES}:who", 2, **BOTH) as run:
        assert run.until_ended() == [0, 0]
