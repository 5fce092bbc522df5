"""What a driver needs for the workers of a cluster."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lockstep.engine import GroupSpec, remote_group
from lockstep.engine.agent import Share, control_role
from lockstep.engine.base import Node
from lockstep.engine.cluster import Placement
from lockstep.engine.forkserver import Kill
from lockstep.engine.links import link_to
from lockstep.engine.loop import EventLoop
from lockstep.engine.remote_group import RemoteGroup
from lockstep.engine.wire import receive_with_files as receive
from tests.repository import SRC

CODE = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from lockstep.engine.remote_group import allow_files
from lockstep.errors import EngineError

resource.setrlimit(resource.RLIMIT_NOFILE, (600, 2000))
allow_files(50)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
allow_files(1000)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
allow_files(1800)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
try:
    allow_files(2000)
except EngineError as error:
    print(error)
"""


def test_a_driver_may_open_a_connection_to_each_worker() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(SRC)], capture_output=True, text=True, check=True
    )
    same, raised, all_there_is, refused = done.stdout.splitlines()
    assert same == "600"
    assert int(raised) == 1512
    assert int(all_there_is) == 2000
    assert "needs 2000 connections to workers and nodes, and may open only 2000 files" in refused
    assert "ulimit -Hn 2512" in refused


class TwoNodes:
    """A cluster whose agents and workers are sockets of this test."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.controls: list[socket.socket] = []
        self.workers: list[socket.socket] = []

    def place(self, spec: GroupSpec, waiting: Any, is_cancelled: Any) -> Placement:
        return Placement(None, [Node("a", "127.0.0.1"), Node("b", "127.0.0.1")], [[], []])

    def release(self, placement: Placement) -> None:
        pass

    def open_shares(
        self, shares: Sequence[Share], address: tuple[str, int], secret: bytes
    ) -> list[str]:
        for share in shares:
            self.controls.append(link_to(address, secret, control_role(share.number)))
            self.workers += [link_to(address, secret, rank) for rank in share.ranks]
        return []

    def follow(self, heard: Any) -> Callable[[], None]:
        return lambda: None


class Quiet:
    def write(self, rank: int, data: bytes) -> None:
        pass

    def tick(self) -> float | None:
        return None

    def close(self) -> None:
        pass


def test_an_order_for_one_rank_goes_to_its_node_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where thousands of ranks end at once, one to all nodes for each of them takes minutes."""
    monkeypatch.setattr(remote_group, "NEWS_S", 0.0)
    cluster, late = TwoNodes(), list[bool]()
    with contextlib.closing(EventLoop()) as loop:
        group = RemoteGroup(GroupSpec(2, "", b""), loop, lambda event: None, Quiet(), cluster)
        timer = loop.call_later(60, lambda: late.append(True))
        try:
            loop.run_until(lambda: bool(late) or len(group._workers) == len(group._controls) == 2)
            group._opening.join()  # the driver may have a connection before it has the other end
            first, second = cluster.controls
            cluster.workers[0].close()  # nobody says how it ended
            loop.run_until(lambda: bool(late) or bool(select.select([first], [], [], 0)[0]))
            assert not late
            group.kill()
            orders = [received[0] for sock in (first, second) if (received := receive(sock))]
            assert [order.message for order in orders] == [Kill(0), Kill()]
        finally:
            timer.cancel()
            group.close()
            for sock in (*cluster.controls, *cluster.workers):
                sock.close()
