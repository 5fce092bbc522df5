"""Lost agents are noticed; slow ones are asked twice."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.engine import heartbeats as module
from lockstep.engine.base import Node
from lockstep.engine.heartbeats import ORPHANED, PING, PONG, Heartbeats, Loss

PATIENCE_S = 60.0
NODE = Node("1", "10.0.0.1")


class Watched:
    """Heartbeats of one agent, which the test plays."""

    def __init__(self) -> None:
        self.losses: queue.Queue[Loss] = queue.Queue()
        self.asked: queue.Queue[str] = queue.Queue()
        self.is_there = True
        self.answers = False
        mine, self.agent = socket.socketpair()
        self.agent.settimeout(PATIENCE_S)
        self.heartbeats = Heartbeats(self.losses.put)
        self.heartbeats.add(NODE, mine, self._look, self._ask)

    def _look(self) -> bool:
        return self.is_there

    def _ask(self) -> bool:
        self.asked.put("asked")
        return self.answers


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    # Nothing is fenced unless a test says so, however slow this machine is.
    for name, seconds in (("BEAT_S", 0.02), ("SUSPECT_S", 0.06), ("FENCE_S", PATIENCE_S)):
        monkeypatch.setattr(module, name, seconds)
    found = Watched()
    yield found
    found.heartbeats.close()
    found.agent.close()


def test_an_agent_that_answers_is_kept(watched: Watched) -> None:
    for _ in range(5):
        assert watched.agent.recv(1) == PING
        watched.agent.send(PONG)
    assert watched.losses.empty()


def test_a_closed_lifeline_is_an_agent_that_ended(watched: Watched) -> None:
    watched.agent.close()
    loss = watched.losses.get(timeout=PATIENCE_S)
    assert loss == (NODE, False, False, loss.detail)
    assert "the agent on node 10.0.0.1 has ended; the node itself answers" in loss.detail


def test_a_closed_lifeline_of_a_node_that_does_not_answer(watched: Watched) -> None:
    watched.is_there = False
    watched.agent.close()
    loss = watched.losses.get(timeout=PATIENCE_S)
    assert loss.whole_node
    assert not loss.fenced
    assert "node 10.0.0.1 is gone" in loss.detail


def test_an_agent_that_lost_its_node_says_so(watched: Watched) -> None:
    watched.agent.send(ORPHANED)
    assert watched.losses.get(timeout=PATIENCE_S).whole_node
    # Its lifeline is closed, and nothing more is said of it.
    while watched.agent.recv(1 << 10):
        pass
    assert watched.losses.empty()


def test_silence_is_asked_again_and_then_fenced(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watched.asked.get(timeout=PATIENCE_S) == "asked"
    assert watched.losses.empty()
    monkeypatch.setattr(module, "FENCE_S", 0.12)
    loss = watched.losses.get(timeout=PATIENCE_S)
    assert loss.fenced
    assert "has not answered for" in loss.detail
    while watched.agent.recv(1 << 10):  # closed: what comes back cannot say anything
        pass


def test_an_answer_on_the_other_path_counts(watched: Watched) -> None:
    watched.answers = True
    for _ in range(3):  # suspected again and again, and never fenced
        watched.asked.get(timeout=PATIENCE_S)
    watched.heartbeats.forget(NODE)
    while watched.agent.recv(1 << 10):
        pass


def test_a_driver_that_was_stopped_blames_nobody(watched: Any) -> None:
    beats = watched.heartbeats
    stopped = queue.Queue[None]()

    def stop() -> None:
        # As if this process had been stopped for an hour.
        beats._ticked -= 3600.0
        for agent in beats._agents.values():
            agent.heard -= 3600.0
        beats._beat()
        stopped.put(None)

    beats._loop.call_soon(stop)
    stopped.get(timeout=PATIENCE_S)
    assert watched.losses.empty()
