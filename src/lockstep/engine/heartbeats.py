"""Notices within seconds that a node of a cluster is gone, frozen or cut off.

One thread of the driver has the lifelines of all agents. A lifeline carries single bytes:

    driver ── PING, every second ──▶ agent
    driver ◀── PONG, at once ─────── agent
    driver ◀── ORPHANED ──────────── agent     the node's own service has ended

    lifeline closed                the agent is gone, at once; a look at the node shows whether
                                   the node is gone, too
    no PONG for SUSPECT_S          suspected: the second probe is made, on another path
    no answer at all for FENCE_S   fenced: the node counts as gone, even if it comes back
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from lockstep.engine.base import Node
from lockstep.engine.loop import EventLoop

__all__ = ["ORPHANED", "PING", "PONG", "Heartbeats", "Loss"]

PING, PONG, ORPHANED = b"?", b"!", b"x"

BEAT_S = 1.0
SUSPECT_S = 3.0
FENCE_S = 6.0
LOOK_S = 1.0
"""How long a look at a node may take."""


class Loss(NamedTuple):
    """An agent that is gone."""

    node: Node
    whole_node: bool
    """The node itself does not answer. Else only the agent has ended."""
    fenced: bool
    """The node may come back: it was only silent."""
    detail: str


class Heartbeats:
    """Pings agents, and says which are lost. ``lost`` is called in the thread, once an agent.

    Args:
        lost: gets what was lost.
    """

    def __init__(self, lost: Callable[[Loss], None]) -> None:
        self._lost = lost
        self._loop = EventLoop()
        self._agents: dict[str, _Lifeline] = {}
        self._closing = False
        self._ticked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="lockstep-heartbeats", daemon=True)
        self._thread.start()

    def add(
        self,
        node: Node,
        lifeline: socket.socket,
        look: Callable[[], bool],
        ask: Callable[[], bool],
    ) -> None:
        """Watch an agent, and own its lifeline. Any thread may call this.

        Args:
            node: where the agent is.
            lifeline: the connection to it.
            look: whether the node's own service accepts connections; takes ``LOOK_S`` at most.
            ask: whether the agent answers on another path than the lifeline; may take long.
        """
        lifeline.setblocking(False)
        self._loop.call_soon(lambda: self._add(_Lifeline(node, lifeline, look, ask)))

    def forget(self, node: Node) -> None:
        """Close an agent's lifeline, on which the agent ends. Nothing is said of it. Any thread."""
        self._loop.call_soon(lambda: self._forget(node.id))

    def close(self) -> None:
        """Close all lifelines, and end the thread. Idempotent."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(lambda: None)
            self._thread.join()

    # ----------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        self._loop.call_later(BEAT_S, self._beat)
        self._loop.run_until(lambda: self._closing)
        for node_id in list(self._agents):
            self._forget(node_id)
        self._loop.close()

    def _add(self, agent: _Lifeline) -> None:
        self._forget(agent.node.id)
        self._agents[agent.node.id] = agent
        self._loop.watch(agent.sock.fileno(), partial(self._readable, agent))

    def _forget(self, node_id: str) -> None:
        agent = self._agents.pop(node_id, None)
        if agent is not None:
            self._loop.unwatch(agent.sock.fileno())
            agent.sock.close()

    def _beat(self) -> None:
        now = time.monotonic()
        # Where this process itself was stopped, or had no CPU, the agents are not to blame.
        late = max(0.0, now - self._ticked - 2 * BEAT_S)
        self._ticked = now
        for agent in list(self._agents.values()):
            agent.heard += late
            silent = now - agent.heard
            if silent >= FENCE_S:
                self._report(agent, whole_node=True, fenced=True, detail=_silent(agent.node))
                continue
            if silent >= SUSPECT_S and not agent.suspected:
                agent.suspected = True
                self._in_thread(agent.ask, partial(self._asked, agent))
            with contextlib.suppress(OSError):  # full, or broken: the read shows which
                agent.sock.send(PING)
        self._loop.call_later(BEAT_S, self._beat)

    def _readable(self, agent: _Lifeline) -> None:
        try:
            data = agent.sock.recv(1 << 12)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if ORPHANED in data:
            detail = f"node {agent.node.address} is gone: its Ray process has ended"
            self._report(agent, whole_node=True, fenced=False, detail=detail)
        elif data:
            self._heard(agent)
        else:
            self._loop.unwatch(agent.sock.fileno())
            agent.heard = time.monotonic() + LOOK_S  # what it was is said when the look is over
            self._in_thread(agent.look, partial(self._looked, agent))

    def _heard(self, agent: _Lifeline) -> None:
        agent.heard = time.monotonic()
        agent.suspected = False

    def _asked(self, agent: _Lifeline, answers: bool) -> None:
        if answers:
            self._heard(agent)

    def _looked(self, agent: _Lifeline, is_there: bool) -> None:
        address = agent.node.address
        if is_there:
            detail = f"the agent on node {address} has ended; the node itself answers"
        else:
            detail = f"node {address} is gone: its agent has ended, and its Ray does not answer"
        self._report(agent, whole_node=not is_there, fenced=False, detail=detail)

    def _report(self, agent: _Lifeline, *, whole_node: bool, fenced: bool, detail: str) -> None:
        if self._agents.get(agent.node.id) is agent:
            self._forget(agent.node.id)
            self._lost(Loss(agent.node, whole_node, fenced, detail))

    def _in_thread(self, question: Callable[[], bool], then: Callable[[bool], None]) -> None:
        def work() -> None:
            answer = question()
            self._loop.call_soon(lambda: then(answer))

        threading.Thread(target=work, name="lockstep-probe", daemon=True).start()


class _Lifeline:
    def __init__(
        self,
        node: Node,
        sock: socket.socket,
        look: Callable[[], bool],
        ask: Callable[[], bool],
    ) -> None:
        self.node = node
        self.sock = sock
        self.look = look
        self.ask = ask
        self.heard = time.monotonic()
        self.suspected = False


def _silent(node: Node) -> str:
    return (
        f"node {node.address} has not answered for {FENCE_S:g} s, although it was asked twice: it "
        "is frozen, overloaded or cut off. The run does not wait for it any more"
    )
