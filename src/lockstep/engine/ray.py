"""The engine of many machines: Ray Core places the workers, agents on its nodes run them.

    driver ── placement group ──▶ Ray            which node has room for which worker
    driver ── actor, once a node ──▶ agent       stays warm; forks workers (``agent.py``)
    driver ◀─ a connection a node ─▶ agent       what only the workers' own machine can do or know
    driver ◀─ a connection a rank ─▶ worker      the messages, as on one machine

The secret of a group's connections travels in Ray's own calls only. The only file that imports Ray.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lockstep import ray_names, runtime, settings
from lockstep.engine.agent import (
    Agent,
    Lost,
    Order,
    Output,
    Share,
    Written,
    control_role,
    version_difference,
    versions,
)
from lockstep.engine.base import (
    Engine,
    EngineEvent,
    GroupSpec,
    Node,
    OutputSink,
    WorkerExited,
    WorkerGroup,
    WorkerMessage,
    WorkerPreempted,
)
from lockstep.engine.forkserver import DumpStacks, Ended, Interrupt, Kill, Started
from lockstep.engine.links import LinkListener
from lockstep.engine.loop import EventLoop, Timer
from lockstep.engine.output_pump import OutputPump
from lockstep.engine.processes import current_directory
from lockstep.engine.wire import Connection, Terminating, make_frame
from lockstep.errors import EngineError, InsufficientResourcesError
from lockstep.jobs import JobThread

__all__ = ["AgentActor", "RayEngine"]

LAST_WORDS_S = 2.0
"""How long an ended worker's last messages may take to arrive after the news of its end."""

CAPACITY_CHECK_S = 1.0
_AGENT_CALLS = 64
_SMALLEST = 0.0001
_ROUNDING = 1e-9


class AgentActor:
    """The Ray actor around an agent. Its calls run on threads: each may wait for the driver."""

    def __init__(self, address: tuple[str, int], secret: bytes, role: int) -> None:
        self._agent = Agent(address, secret, role)

    def open_group(self, share: Share, address: tuple[str, int], secret: bytes) -> None:
        """See :class:`Agent`."""
        self._agent.open_group(share, address, secret)

    def versions(self) -> dict[str, str]:
        """What is installed on this node."""
        return versions()

    def close(self) -> None:
        """See :class:`Agent`."""
        self._agent.close()


def _gpu_ids() -> list[str]:
    """Runs in a bundle: only what is scheduled there learns its GPUs."""
    import ray

    return [str(gpu) for gpu in ray.get_gpu_ids()]


@dataclass(frozen=True)
class _Placement:
    group: Any
    """Ray's placement group."""
    nodes: list[Node]
    """Rank → node; the ranks of a node are next to each other."""
    gpus: list[list[str]]
    """Rank → its GPUs."""


@dataclass
class _AgentHandle:
    actor: Any
    lifeline: socket.socket


class RayEngine(Engine):
    """Worker processes on the nodes of a Ray cluster, forked from servers that stay warm there."""

    name = "ray"
    single_machine = False
    in_this_process = False

    def __init__(self) -> None:
        try:
            ray_names.use_ray_itself()
        except ImportError as error:
            raise EngineError(
                f"engine 'ray' needs Ray ({error}): pip install 'lockstep-train[ray]', on this "
                "machine and on all nodes of the cluster."
            ) from error
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._agents: dict[str, _AgentHandle] = {}
        self._started_ray = False
        self._host = ""
        self._releases = JobThread("lockstep-ray-release")
        atexit.register(self.close)

    def check(self, spec: GroupSpec) -> list[str]:
        """See :class:`Engine`."""
        nodes = self._alive_nodes()
        if spec.size > _room_on(nodes, spec):
            raise InsufficientResourcesError(
                f"{spec.size} worker(s) with {_amounts(_bundle(spec))} each do not fit on this Ray "
                f"cluster, which has {_describe(nodes)}; lower num_workers or "
                "resources_per_worker, or add nodes."
            )
        return []

    def capacity(self, spec: GroupSpec) -> int:
        """See :class:`Engine`."""
        return _room_on(self._alive_nodes(), spec)

    def watch_capacity(self, loop: EventLoop, changed: Callable[[], None]) -> Callable[[], None]:
        """See :class:`Engine`."""
        ended = threading.Event()
        known = {node["NodeID"] for node in self._alive_nodes()}

        def follow() -> None:
            nonlocal known
            while not ended.wait(CAPACITY_CHECK_S):
                with contextlib.suppress(Exception):  # Ray may be gone; the runs will see it
                    now = {node["NodeID"] for node in self._alive_nodes()}
                    if now != known and not ended.is_set():
                        known = now
                        loop.call_soon(changed)

        threading.Thread(target=follow, name="lockstep-ray-nodes", daemon=True).start()
        return ended.set

    def start(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
    ) -> WorkerGroup:
        """See :class:`Engine`."""
        self.connect()
        return _RayGroup(spec, loop, emit, output, self, self._host)

    def close(self) -> None:
        """See :class:`Engine`."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return
        with self._lock:
            agents, self._agents = list(self._agents.values()), {}
            started_ray, self._started_ray = self._started_ray, False
        import ray

        # Without Ray, the agents see their lifelines close. A call would start a new Ray here.
        if ray.is_initialized():
            with contextlib.suppress(Exception):  # an agent may be gone already
                ray.get([agent.actor.close.remote() for agent in agents], timeout=10)
            for agent in agents:
                with contextlib.suppress(Exception):
                    ray.kill(agent.actor)
        for agent in agents:
            agent.lifeline.close()
        self._releases.drain()
        if started_ray:
            ray.shutdown()

    # ----------------------------------------------------------------- for groups, in any thread

    def place(self, spec: GroupSpec, is_cancelled: Callable[[], bool]) -> _Placement | None:
        """Reserve what a group needs, however long that takes; None if it is cancelled."""
        import ray
        from ray.util import placement_group, placement_group_table
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([_bundle(spec)] * spec.size, strategy="PACK")
        try:
            while not group.wait(0.5):
                if is_cancelled():
                    self.release(group)
                    return None
            node_of = placement_group_table(group)["bundles_to_node_id"]
            addresses = {n["NodeID"]: n["NodeManagerAddress"] for n in self._alive_nodes()}
            # A node's ranks are next to each other; nodes in the order of their first bundle.
            order = list(dict.fromkeys(node_of[index] for index in range(spec.size)))
            bundles = sorted(
                range(spec.size), key=lambda index: (order.index(node_of[index]), index)
            )
            nodes = [Node(node_of[index], addresses.get(node_of[index], "")) for index in bundles]
            gpus: list[list[str]] = [[] for _ in bundles]
            if spec.gpus_per_worker:
                ask = [
                    ray.remote(_gpu_ids)
                    .options(
                        num_cpus=0,
                        num_gpus=spec.gpus_per_worker,
                        scheduling_strategy=PlacementGroupSchedulingStrategy(
                            group, placement_group_bundle_index=index
                        ),
                    )
                    .remote()
                    for index in bundles
                ]
                gpus = ray.get(ask)
        except BaseException:
            self.release(group)
            raise
        return _Placement(group, nodes, gpus)

    def release(self, group: Any) -> None:
        """Give back a placement group. Never waits."""
        from ray.util import remove_placement_group

        self._releases.submit(remove_placement_group, group)

    def open_shares(self, shares: Sequence[Share], address: tuple[str, int], secret: bytes) -> None:
        """Start each share on its node."""
        import ray
        from ray.exceptions import RayActorError

        waiting = list(shares)
        for attempt in range(2):
            agents = self._agents_on([share.node for share in waiting])
            calls = [
                agents[share.node.id].actor.open_group.remote(share, address, secret)
                for share in waiting
            ]
            failed = []
            for share, call in zip(waiting, calls, strict=True):
                try:
                    ray.get(call)
                except RayActorError as error:
                    # The agent has died since its last use. Start a new one, once.
                    self._discard(share.node.id, agents[share.node.id])
                    if attempt:
                        raise EngineError(
                            f"the agent on node {share.node.address} ended at once: {error}"
                        ) from error
                    failed.append(share)
            waiting = failed
            if not waiting:
                return

    def _discard(self, node_id: str, agent: _AgentHandle) -> None:
        with self._lock:
            if self._agents.get(node_id) is agent:
                del self._agents[node_id]
        agent.lifeline.close()

    def _agents_on(self, nodes: Sequence[Node]) -> dict[str, _AgentHandle]:
        """The agents of these nodes, started where there is none yet."""
        with self._lock:
            missing = [node for node in nodes if node.id not in self._agents]
            if missing:
                self._agents.update(self._start_agents(missing))
            return {node.id: self._agents[node.id] for node in nodes}

    def _start_agents(self, nodes: Sequence[Node]) -> dict[str, _AgentHandle]:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        secret = secrets.token_bytes(32)
        lifelines: dict[int, socket.socket] = {}
        with contextlib.closing(EventLoop()) as loop:
            listener = LinkListener(self._host, secret, loop, lifelines.__setitem__)
            actors = [
                ray.remote(AgentActor)
                .options(
                    num_cpus=0,
                    max_concurrency=_AGENT_CALLS,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
                )
                .remote(listener.address, secret, index)
                for index, node in enumerate(nodes)
            ]
            ready = [actor.versions.remote() for actor in actors]
            deadline = time.monotonic() + settings.start_timeout_seconds()
            try:
                while len(lifelines) < len(nodes):
                    timer = loop.call_later(0.2, lambda: None)
                    loop.run_once()
                    timer.cancel()
                    for node, reference in zip(nodes, ready, strict=True):
                        _raise_early(node, reference)
                    if time.monotonic() > deadline:
                        raise EngineError(_late_agents(nodes, lifelines))
                for node, theirs in zip(nodes, ray.get(ready), strict=True):
                    if difference := version_difference(node.address, theirs, versions()):
                        raise EngineError(difference)
            except BaseException:
                for actor in actors:
                    ray.kill(actor)
                for sock in lifelines.values():
                    sock.close()
                raise
            finally:
                listener.close()
        return {
            node.id: _AgentHandle(actor, lifelines[index])
            for index, (node, actor) in enumerate(zip(nodes, actors, strict=True))
        }

    def _alive_nodes(self) -> list[dict[str, Any]]:
        self.connect()
        import ray

        return [node for node in ray.nodes() if node["Alive"]]

    def connect(self) -> None:
        """Use the Ray that is initialised here, or else connect to the cluster."""
        import ray

        if os.getpid() != self._owner:
            raise EngineError(
                "engine 'ray' was started in another process, which has forked this one; Ray "
                "does not survive a fork: start a new process instead."
            )
        with self._lock:
            if not ray.is_initialized():
                current = runtime.current()
                address = current.address
                _refuse_client(address)
                limits = {}
                if address is None and settings.library_variable("RAY_ADDRESS") is None:
                    limits = {"num_cpus": current.num_cpus, "num_gpus": current.num_gpus}
                # What workers print comes through lockstep; agents print nothing. Tasks of a
                # script that uses Ray's own Core may print.
                try:
                    ray.init(
                        address,
                        log_to_driver=settings.ray_names(),
                        logging_level=logging.WARNING,
                        include_dashboard=None,
                        **limits,
                    )
                except ConnectionError as error:
                    raise EngineError(
                        f"no Ray cluster answers at {address or 'the default address'} ({error}); "
                        "start one with 'ray start --head', or give "
                        "lockstep.init(engine='ray', address='HOST:PORT')."
                    ) from error
                self._started_ray = True
            elif ray.util.client.ray.is_connected():
                _refuse_client("ray://…")
            self._host = ray.util.get_node_ip_address()


class _RayGroup(WorkerGroup):
    def __init__(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
        engine: RayEngine,
        host: str,
    ) -> None:
        self._spec = spec
        self._loop = loop
        self._emit = emit
        self._engine = engine
        self._secret = secrets.token_bytes(32)
        self._alive = set(range(spec.size))
        self._pids: dict[int, int] = {}
        self._workers: dict[int, Connection] = {}
        self._waiting = {rank: [make_frame(spec.payload)] for rank in range(spec.size)}
        self._controls: dict[int, Connection] = {}
        self._shares: list[Share] = []
        self._ends: dict[int, Ended] = {}
        self._garbage: dict[int, str] = {}
        self._timers: list[Timer] = []
        self._placement: _Placement | None = None
        self._closed = False
        self._lock = threading.Lock()  # the opening thread sets the placement
        self._packed: tuple[Any, bytes] = (object(), b"")
        self._listener = LinkListener(host, self._secret, loop, self._linked)
        self._pump = OutputPump([], output, loop)
        self._opening = threading.Thread(target=self._open, name="lockstep-ray-open", daemon=True)
        self._opening.start()

    def send(self, rank: int, message: Any) -> None:
        # The same answer goes to every rank, one after the other: it is pickled once.
        if message is not self._packed[0]:
            self._packed = (message, make_frame(message))
        connection = self._workers.get(rank)
        if connection is not None:
            connection.send_frame(self._packed[1])
        elif rank in self._waiting:
            self._waiting[rank].append(self._packed[1])

    def interrupt(self) -> None:
        self._order(Interrupt())
        self._loop.call_soon(lambda: self._abandon_unstarted(130))

    def dump_stacks(self, rank: int) -> None:
        if rank in self._alive:
            self._order(DumpStacks(rank))

    def problem(self, rank: int) -> str:
        if rank not in self._alive or rank in self._pids:
            return ""
        if self._placement is None:
            return (
                f"{self._spec.size} × {_amounts(_bundle(self._spec))} are not free on the Ray "
                "cluster yet; ray status shows who has them"
            )
        return f"node {self._placement.nodes[rank].address} may still be importing modules"

    def kill(self) -> None:
        self._order(Kill())
        self._loop.call_soon(lambda: self._abandon_unstarted(-signal.SIGKILL))

    def abandon(self) -> None:
        self._order(Kill())
        for rank in sorted(self._alive):
            self._lose(rank, -signal.SIGKILL, "its end was not waited for")

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
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
            self._engine.release(self._placement.group)

    # --------------------------------------------------------------------- in the opening thread

    def _open(self) -> None:
        try:
            placement = self._engine.place(self._spec, lambda: self._closed)
            if placement is None:
                return
            shares = _shares(self._spec, placement)
            with self._lock:
                if self._closed:
                    self._engine.release(placement.group)
                    return
                self._placement, self._shares = placement, shares
            self._engine.open_shares(shares, self._listener.address, self._secret)
        except Exception as error:
            self._loop.call_soon(partial(self._not_opened, _short(error)))

    # ---------------------------------------------------------------------- on the loop's thread

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

    def _forward(self, rank: int) -> Callable[[Any], None]:
        emit = self._emit

        def forward(message: Any) -> None:
            # type(), not isinstance: every report passes here.
            if type(message) is Started:
                self._pids[rank] = message.pid
            elif type(message) is Terminating:
                emit(WorkerPreempted(rank))
            else:
                emit(WorkerMessage(rank, message))

        return forward

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

    def _order(self, message: Interrupt | DumpStacks | Kill) -> None:
        for share in self._shares:
            control = self._controls.get(share.number)
            if control is not None:
                pids = {
                    rank: self._pids[rank]
                    for rank in share.ranks
                    if rank in self._alive and rank in self._pids
                }
                control.send(Order(message, pids))

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
            self._timers.append(
                self._loop.call_later(LAST_WORDS_S, partial(self._report_end, rank))
            )

    def _worker_closed(self, rank: int) -> None:
        if rank in self._ends:
            self._report_end(rank)

    def _report_end(self, rank: int) -> None:
        if rank in self._alive:
            message = self._ends[rank]
            if rank in self._garbage:
                # The signal is this engine's own, and says nothing.
                message = Ended(rank, None, self._garbage[rank])
            self._lose(rank, message.exitcode, message.detail)

    def _got_garbage(self, rank: int, what: str) -> None:
        self._garbage[rank] = (
            f"its connection to the driver carried {what}; a process that it forked may have "
            "written to a file that is not its own"
        )
        self._order(Kill(rank))

    def _agent_gone(self, index: int) -> None:
        share = next((share for share in self._shares if share.number == index), None)
        where = share.node.address if share is not None else "of this group"
        self._lose_share(
            index, f"the connection to node {where} broke: the node or its agent is gone"
        )

    def _lose_share(self, index: int, detail: str) -> None:
        ranks = {rank for share in self._shares if share.number == index for rank in share.ranks}
        for rank in sorted(ranks & self._alive):
            self._lose(rank, None, detail)

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

    def _abandon_unstarted(self, exitcode: int) -> None:
        """Report workers that are not started yet as ended, instead of waiting for room or imports.

        A worker that is forked later finds its connection closed, and ends.
        """
        for rank in sorted(self._alive):
            if rank in self._workers:
                self._workers[rank].drain()  # its Started message may have arrived just now
            if rank in self._alive and rank not in self._pids:
                self._lose(rank, exitcode, "it had not been started yet")


def _shares(spec: GroupSpec, placement: _Placement) -> list[Share]:
    import ray

    nodes = list(dict.fromkeys(placement.nodes))
    moved = "working_dir" in (ray.get_runtime_context().runtime_env or {})
    shares = []
    for index, node in enumerate(nodes):
        ranks = tuple(rank for rank, place in enumerate(placement.nodes) if place == node)
        gpus = tuple(gpu for rank in ranks for gpu in placement.gpus[rank])
        local = replace(
            spec,
            size=len(ranks),
            payload=b"",
            cpus_per_worker=_bundle(spec).get("CPU")
            if spec.cpus_per_worker is None
            else spec.cpus_per_worker,
            gpus=gpus if spec.gpus_per_worker else None,
        )
        # Ray's own copy of the working directory is the agent's.
        cwd = None if moved else current_directory()
        shares.append(Share(index, node, ranks, spec.size, local, list(sys.argv), cwd))
    return shares


def _bundle(spec: GroupSpec) -> dict[str, float]:
    """What one worker reserves; one CPU if the user did not say."""
    wanted = {
        "CPU": 1.0 if spec.cpus_per_worker is None else float(spec.cpus_per_worker),
        "GPU": float(spec.gpus_per_worker),
    }
    return {name: amount for name, amount in wanted.items() if amount} or {"CPU": _SMALLEST}


def _room_on(nodes: Sequence[Mapping[str, Any]], spec: GroupSpec) -> int:
    bundle = _bundle(spec)
    return sum(
        min(
            math.floor(node["Resources"].get(name, 0.0) / amount + _ROUNDING)
            for name, amount in bundle.items()
        )
        for node in nodes
    )


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _describe(nodes: Sequence[Mapping[str, Any]]) -> str:
    texts = [
        f"{node['NodeManagerAddress']} with "
        + _amounts({name: node["Resources"].get(name, 0.0) for name in ("CPU", "GPU")})
        for node in nodes
    ]
    shown = texts[:8] + ([f"{len(texts) - 8} more"] if len(texts) > 8 else [])
    return f"{len(nodes)} node(s): {'; '.join(shown)}"


def _short(error: BaseException) -> str:
    """What a message needs of an error, which Ray may have wrapped in a page of text."""
    cause = getattr(error, "cause", None)  # of a RayTaskError: the error on the node
    text = str(cause if isinstance(cause, BaseException) else error).strip()
    return text.splitlines()[-1] if text else type(error).__name__


def _raise_early(node: Node, reference: Any) -> None:
    """Raise if an agent could not be started, instead of waiting for its lifeline."""
    import ray

    done, _ = ray.wait([reference], timeout=0)
    if done:
        try:
            ray.get(reference)
        except Exception as error:
            raise EngineError(
                f"the agent on node {node.address} could not be started: {_short(error)}; "
                "lockstep and Ray must be installed on every node, in the same versions"
            ) from error


def _late_agents(nodes: Sequence[Node], lifelines: Mapping[int, Any]) -> str:
    late = [node.address for index, node in enumerate(nodes) if index not in lifelines]
    return (
        f"the agents on {', '.join(late)} did not connect in {settings.start_timeout_seconds():g} "
        "s; LOCKSTEP_START_TIMEOUT_S sets how long they may take"
    )


def _refuse_client(address: str | None) -> None:
    if address is not None and address.startswith("ray://"):
        raise EngineError(
            f"engine 'ray' does not work through Ray Client ({address}): Ray ends a client's job "
            "30 s after its connection breaks. Run the driver inside the cluster instead: "
            f"ray job submit --working-dir . -- python {sys.argv[0] or 'script.py'}"
        )
