"""A worker group whose workers run on the nodes of a cluster, started by agents there.

    driver ◀─ a connection a node ─▶ agent       what only the workers' own machine can do or know
    driver ◀─ a connection a rank ─▶ worker      the messages, as on one machine

Which cluster it is, and how it reserves room, is the :class:`Cluster`'s: this file knows neither.
"""

from __future__ import annotations

import resource
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from lockstep.engine.agent import Lost, Measure, Order, Output, Share, Written, control_role
from lockstep.engine.base import (
    EngineEvent,
    EngineNotice,
    GroupSpec,
    OutputSink,
    Sampled,
    WorkerExited,
    WorkerPreempted,
)
from lockstep.engine.cluster import Placement, bundle_of
from lockstep.engine.connected import ConnectedGroup
from lockstep.engine.forkserver import DumpStacks, Ended, Interrupt, Kill
from lockstep.engine.links import LinkListener
from lockstep.engine.loop import EventLoop, Timer
from lockstep.engine.output_pump import OutputPump
from lockstep.engine.processes import current_directory
from lockstep.engine.wire import Connection, make_frame
from lockstep.errors import EngineError

__all__ = [
    "Cluster",
    "HeadGone",
    "News",
    "NodeGoing",
    "NodeGone",
    "RemoteGroup",
    "allow_files",
    "shares_of",
]

LAST_WORDS_S = 2.0
"""How long an ended worker's last messages may take to arrive after the news of its end."""

NEWS_S = 5.0
"""After a connection has broken: how long the news of what has ended may take."""


SPARE_FILES = 512
"""How many files a driver may have open besides its connections, where the system allows that."""
FEWEST_SPARE_FILES = 128
"""With fewer a driver cannot work: Ray's own connections, logs, the journal."""


class NodeGone(NamedTuple):
    """A node, or its agent, is lost, with all workers there."""

    node_id: str
    detail: str


class NodeGoing(NamedTuple):
    """A node will be taken away."""

    node_id: str
    deadline: float | None
    """When, in seconds since the epoch; None: that was not said."""


class HeadGone(NamedTuple):
    """What runs the cluster does not answer. The workers do not depend on it."""

    detail: str


News = NodeGone | NodeGoing | HeadGone


class Cluster(Protocol):
    """What a group needs of the cluster. Any thread may call all of it."""

    host: str
    """Where the nodes reach the driver."""

    def place(
        self, spec: GroupSpec, waiting: Callable[[str], None], is_cancelled: Callable[[], bool]
    ) -> Placement | None:
        """Reserve what a group needs, however long that takes; None if it is cancelled.

        ``waiting`` is called with what it waits for.
        """

    def release(self, placement: Placement) -> None:
        """Give it back. Never waits."""

    def open_shares(
        self, shares: Sequence[Share], address: tuple[str, int], secret: bytes
    ) -> Sequence[str]:
        """Start each share on its node; returns what the user should know of the nodes."""

    def follow(self, heard: Callable[[News], None]) -> Callable[[], None]:
        """Call ``heard``, in any thread, with news of nodes; returns a function that ends this."""


class RemoteGroup(ConnectedGroup):
    """See the module. All methods are called on the loop's thread."""

    def __init__(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
        cluster: Cluster,
    ) -> None:
        allow_files(spec.size)  # before anything is reserved; nodes come on top
        super().__init__(spec.size, loop, emit)
        self._spec = spec
        self._cluster = cluster
        self._secret = secrets.token_bytes(32)
        payload = make_frame(spec.payload)
        self._waiting = {rank: [payload] for rank in range(spec.size)}
        self._controls: dict[int, Connection] = {}
        self._shares: list[Share] = []
        """By their numbers."""
        self._share_of: dict[int, Share] = {}
        """Rank → its share."""
        self._ends: dict[int, Ended] = {}
        self._timers: list[Timer] = []
        self._placement: Placement | None = None
        self._waits_for = ""
        self._closed = False
        self._lock = threading.Lock()  # the opening thread sets the placement
        self._listener = LinkListener(cluster.host, self._secret, loop, self._linked)
        self._pump = OutputPump([], output, loop)
        self._unfollow = cluster.follow(lambda news: loop.call_soon(partial(self._heard, news)))
        self._opening = threading.Thread(target=self._open, name="lockstep-open", daemon=True)
        self._opening.start()

    def send(self, rank: int, message: Any) -> None:
        """See :class:`WorkerGroup`."""
        connection = self._workers.get(rank)
        if connection is not None:
            connection.send_frame(self._frame(message))
        elif rank in self._waiting:
            self._waiting[rank].append(self._frame(message))

    def interrupt(self) -> None:
        """See :class:`WorkerGroup`."""
        self._order(Interrupt(), self._shares)
        self._loop.call_soon(lambda: self._abandon_unstarted(130))

    def dump_stacks(self, rank: int) -> None:
        """See :class:`WorkerGroup`."""
        if rank in self._alive and rank in self._share_of:
            self._order(DumpStacks(rank), [self._share_of[rank]])

    def sample(self) -> None:
        """See :class:`WorkerGroup`."""
        for share in self._shares:
            control = self._controls.get(share.number)
            if control is not None and (pids := self._pids_of(set(share.ranks))):
                control.send(Measure(dict(pids)))

    def problem(self, rank: int) -> str:
        """See :class:`WorkerGroup`."""
        if rank not in self._alive or rank in self._pids:
            return ""
        if self._placement is None:
            return self._waits_for or "the cluster has not placed the workers yet"
        return f"node {self._placement.nodes[rank].address} may still be importing modules"

    @property
    def waits_for_room(self) -> bool:
        """See :class:`WorkerGroup`."""
        return self._placement is None and bool(self._waits_for and self._alive)

    def kill(self) -> None:
        """See :class:`WorkerGroup`."""
        self._order(Kill(), self._shares)
        self._loop.call_soon(lambda: self._abandon_unstarted(-signal.SIGKILL))

    def abandon(self) -> None:
        """See :class:`WorkerGroup`."""
        self._order(Kill(), self._shares)
        for rank in sorted(self._alive):
            self._lose(rank, -signal.SIGKILL, "its end was not waited for")

    def close(self) -> None:
        """See :class:`WorkerGroup`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._unfollow()
        self._alive.clear()
        self._waiting.clear()
        self._listener.close()
        for timer in self._timers:
            timer.cancel()
        for control in self._controls.values():
            control.hang_up()  # the agent then ends the workers
        for worker in self._workers.values():
            worker.hang_up()
        self._pump.close()
        if self._placement is not None:
            self._cluster.release(self._placement)

    # --------------------------------------------------------------------- in the opening thread

    def _open(self) -> None:
        try:
            placement = self._cluster.place(
                self._spec,
                lambda text: self._loop.call_soon(partial(self._must_wait, text)),
                lambda: self._closed,
            )
            if placement is None:
                return
            shares = shares_of(self._spec, placement)
            with self._lock:
                if self._closed:
                    self._cluster.release(placement)
                    return
                self._placement, self._shares = placement, shares
                self._share_of = {rank: share for share in shares for rank in share.ranks}
            # One a worker; one a group and node; and the node's lifeline.
            allow_files(self._spec.size + 2 * len(shares))
            notes = self._cluster.open_shares(shares, self._listener.address, self._secret)
            for note in notes:
                self._loop.call_soon(partial(self._notify, note))
        except Exception as error:
            text = str(error).strip() or type(error).__name__
            self._loop.call_soon(partial(self._not_opened, text))

    # ---------------------------------------------------------------------- on the loop's thread

    def _must_wait(self, text: str) -> None:
        if self._alive and self._placement is None:
            self._waits_for = text
            self._emit(EngineNotice(f"Waiting: {text}."))

    def _notify(self, text: str) -> None:
        if not self._closed:
            self._emit(EngineNotice(f"{text}."))

    def _not_opened(self, text: str) -> None:
        for rank in sorted(self._alive):
            self._lose(rank, None, text)

    def _linked(self, role: int, sock: socket.socket) -> None:
        """A caller has proven the secret: an agent, or one of its workers."""
        if role < 0:
            index = control_role(role)
            gone = partial(self._agent_gone, index)
            self._controls[index] = Connection(
                sock, self._loop, partial(self._from_agent, index), gone, lambda _: gone()
            )
        elif role not in self._alive:
            sock.close()  # the worker will see it, and end
        else:
            connection = Connection(
                sock,
                self._loop,
                self._forward(role),
                partial(self._worker_closed, role),
                partial(self._got_garbage, role),
            )
            self._workers[role] = connection
            for frame in self._waiting.pop(role):
                connection.send_frame(frame)

    def _from_agent(self, index: int, message: Any) -> None:
        if type(message) is Output:
            count = len(message.data)
            self._pump.feed(
                message.rank,
                message.data,
                lambda: self._loop.call_soon(lambda: self._controls[index].send(Written(count))),
            )
        elif type(message) is Ended:
            self._ended(message)
        elif type(message) is Lost:
            self._lose_share(index, message.detail)
        elif type(message) is Sampled and not self._closed:
            self._emit(message)

    def _order(self, message: Interrupt | DumpStacks | Kill, shares: Sequence[Share]) -> None:
        for share in shares:
            control = self._controls.get(share.number)
            if control is not None:
                control.send(Order(message, dict(self._pids_of(set(share.ranks)))))

    def _ended(self, message: Ended) -> None:
        rank = message.rank
        if rank not in self._alive or rank in self._ends:
            return
        self._ends[rank] = message
        connection = self._workers.get(rank)
        if connection is None or connection.closed:
            self._report_end(rank)
            return
        # Its last messages may still be on their way, on another connection than this news. A
        # process that it forked may hold that connection open: so the wait is limited.
        connection.drain()
        if rank in self._alive:
            self._later(LAST_WORDS_S, partial(self._report_end, rank))

    def _worker_closed(self, rank: int) -> None:
        if rank in self._ends:
            self._report_end(rank)
        else:
            # The agent reports how it ended. If only the connection broke, it must end, too.
            self._later(NEWS_S, partial(self._kill_one, rank))

    def _report_end(self, rank: int) -> None:
        if rank in self._alive:
            end = self._end_of(self._ends[rank])
            self._lose(rank, end.exitcode, end.detail)

    def _got_garbage(self, rank: int, what: str) -> None:
        self._note_garbage(rank, what)
        self._kill_one(rank)

    def _kill_one(self, rank: int) -> None:
        # To its own node only: where thousands of ranks end at once, this is done for each.
        if rank in self._alive:
            self._order(Kill(rank), [self._share_of[rank]])

    def _agent_gone(self, index: int) -> None:
        # The cluster says what it was, as soon as it knows whether the node is gone, too.
        self._later(NEWS_S, partial(self._lose_share, index, "the connection to its agent broke"))

    def _heard(self, news: News) -> None:
        if isinstance(news, HeadGone):
            self._notify(news.detail)
            return
        shares = [share for share in self._shares if share.node.id == news.node_id]
        for share in shares:
            if isinstance(news, NodeGone):
                self._lose_share(share.number, news.detail)
            else:
                # One rank's notice is the whole group's.
                for rank in sorted(set(share.ranks) & self._alive)[:1]:
                    self._emit(WorkerPreempted(rank, news.deadline))

    def _lose_share(self, index: int, detail: str) -> None:
        for rank in sorted(set(self._shares[index].ranks) & self._alive):
            self._lose(rank, None, detail)
        if index in self._controls:
            self._controls[index].hang_up()

    def _lose(self, rank: int, exitcode: int | None, detail: str) -> None:
        """Report the end of a worker, after what it has sent."""
        connection = self._workers.get(rank)
        if connection is not None:
            connection.drain()
        if rank in self._alive:
            self._alive.discard(rank)
            self._waiting.pop(rank, None)
            if connection is not None:
                connection.hang_up()
            self._emit(WorkerExited(rank, exitcode, detail))

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(self._loop.call_later(seconds, call))


def allow_files(connections: int) -> None:
    """Let this process open that many connections.

    Raises:
        EngineError: the system does not allow that many open files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return
    if hard != resource.RLIM_INFINITY and connections + FEWEST_SPARE_FILES > hard:
        raise EngineError(
            f"the driver needs {connections} connections to workers and nodes, and may open only "
            f"{hard} files; allow {wanted} where the driver is started (as root: ulimit -Hn "
            f"{wanted}; in a systemd unit: LimitNOFILE={wanted}; in Docker: --ulimit "
            f"nofile={wanted}), or use fewer workers."
        )
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def shares_of(spec: GroupSpec, placement: Placement) -> list[Share]:
    """What each node of a placement runs."""
    ranks_of: dict[str, list[int]] = {}
    for rank, node in enumerate(placement.nodes):
        ranks_of.setdefault(node.id, []).append(rank)
    cpus = bundle_of(spec).get("CPU") if spec.cpus_per_worker is None else spec.cpus_per_worker
    argv, cwd = list(sys.argv), current_directory()
    shares = []
    for index, ranks in enumerate(ranks_of.values()):
        gpus = tuple(gpu for rank in ranks for gpu in placement.gpus[rank])
        local = replace(
            spec,
            size=len(ranks),
            payload=b"",
            cpus_per_worker=cpus,
            gpus=gpus if spec.gpus_per_worker else None,
            label_selectors=(),
        )
        node = placement.nodes[ranks[0]]
        shares.append(Share(index, node, tuple(ranks), spec.size, local, argv, cwd))
    return shares
