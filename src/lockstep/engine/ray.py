"""The engine of many machines: Ray Core places the workers, agents on its nodes run them.

    driver ── placement group ──▶ Ray            which node has room for which worker
    driver ── actor, once a node ──▶ agent       stays warm; forks workers (``agent.py``)
    driver ◀─ a lifeline a node ──▶ agent        heartbeats (``heartbeats.py``)
    driver ◀─ a connection a node and group, one a rank ──▶   (``remote_group.py``)

The secret of a group's connections travels in Ray's own calls only. The only file that imports Ray.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from lockstep import ray_names, runtime, settings
from lockstep.engine.agent import (
    Agent,
    Share,
    module_differences,
    module_sums,
    own_modules,
    version_difference,
    versions,
)
from lockstep.engine.attach import ask_workers
from lockstep.engine.base import (
    Engine,
    EngineEvent,
    GroupSpec,
    Holder,
    MemoryPlace,
    Node,
    NodeMemory,
    OutputSink,
    WorkerGroup,
)
from lockstep.engine.cluster import (
    ClusterNode,
    Placement,
    bundle_of,
    describe_nodes,
    describe_request,
    ranks_by_node,
    room_on,
    selectors_of,
)
from lockstep.engine.heartbeats import FENCE_S, LOOK_S, SUSPECT_S, Heartbeats, Loss
from lockstep.engine.links import LinkListener, greets
from lockstep.engine.loop import EventLoop
from lockstep.engine.remote_group import HeadGone, News, NodeGoing, NodeGone, RemoteGroup
from lockstep.errors import EngineError, InsufficientResourcesError
from lockstep.jobs import JobThread

__all__ = ["AgentActor", "RayEngine", "ask_nodes", "cluster_address", "join_cluster"]

LOOK_AGAIN_S = 1.0
"""How often the cluster's nodes are looked at."""
SETTLE_S = 1.0
"""How long Ray may take to count what was reserved or given back."""
RAY_KNOWS_S = 75.0
"""How long Ray may take to see that a node is gone."""
SHORT_WAIT_S = 1.0
"""A wait for room that is shorter is not worth a message."""
KEPT_S = 1.0
"""How long a placement group is kept for the next attempt, fit or trial."""
NO_DEADLINE_S = 3600.0
"""How long ranks may take to save on a node that is drained without a deadline."""
ROUTES_S = 60.0
"""How long agents may take to try whether they reach each other."""
HEAD_MISSED = 3
"""After this number of requests without an answer, the head is gone."""
_AGENT_CALLS = 64
_NAMESPACE = "lockstep"
"""Ray's namespace of the agents. Each is named by its node, so that others can find it."""
_NODE_ID_LABEL = "ray.io/node-id"


class AgentActor:
    """The Ray actor around an agent. Its calls run on threads: each may wait for the driver."""

    def __init__(self, address: tuple[str, int], secret: bytes, role: int, spec: GroupSpec) -> None:
        self._agent = Agent(address, secret, role, spec)

    def open_group(self, share: Share, address: tuple[str, int], secret: bytes) -> None:
        """See :class:`Agent`."""
        self._agent.open_group(share, address, secret)

    def installed(self, modules: Sequence[str]) -> tuple[dict[str, str], dict[str, int]]:
        """What is installed on this node, and check sums of the driver's own modules here."""
        return versions(), module_sums(modules)

    def open_port(self, host: str) -> tuple[str, int]:
        """See :class:`Agent`."""
        return self._agent.open_port(host)

    def close_port(self, number: int) -> None:
        """See :class:`Agent`."""
        self._agent.close_port(number)

    def reaches(self, address: tuple[str, int]) -> str:
        """See :class:`Agent`."""
        return self._agent.reaches(address)

    def stacks(
        self,
        workers: Sequence[tuple[int, int]],
        is_complete: Callable[[list[str]], bool],
        seconds: float,
    ) -> list[list[str] | str]:
        """See :func:`ask_workers`. Whoever may join the cluster may call this."""
        return ask_workers(workers, is_complete, seconds)

    def keep_snapshot(self, *args: Any) -> Holder:
        """See :class:`SnapshotStore`."""
        return self._agent.snapshots.keep(*args)

    def fetch_snapshot(self, *args: Any) -> Holder:
        """See :class:`SnapshotStore`."""
        return self._agent.snapshots.fetch(*args)

    def drop_snapshots(self, keys: list[int]) -> None:
        """See :class:`SnapshotStore`."""
        self._agent.snapshots.drop(keys)

    def answer(self) -> bool:
        """The second probe of a node that does not answer on its lifeline."""
        return True

    def retire(self) -> None:
        """See :class:`Agent`."""
        self._agent.retire()


def _gpu_ids() -> list[str]:
    """Runs in a bundle: only what is scheduled there learns its GPUs."""
    import ray

    return [str(gpu) for gpu in ray.get_gpu_ids()]


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
        self._starting = threading.Lock()
        self._agents: dict[str, Any] = {}
        """Node → its agent, a handle of an actor."""
        self._losses: dict[str, str] = {}
        """Node → how its last agent was lost."""
        self._routes: set[tuple[str, str]] = set()
        self._kept: list[tuple[float, Placement]] = []
        """Placement groups that were given back, and since when."""
        self._heartbeats: Heartbeats | None = None
        self._nodes: _Nodes | None = None
        self._followers: list[Callable[[News], None]] = []
        self._started_ray = False
        self._moved = False
        self.host = ""
        self.cluster = ""
        self._releases = JobThread("lockstep-ray-release")
        self.node_memory = _RayMemory(self)
        atexit.register(self.close)

    def check(self, spec: GroupSpec) -> list[str]:
        """See :class:`Engine`."""
        nodes = self._known_nodes()
        everything = [one._replace(free=one.total) for one in nodes.usable()]
        if spec.size <= room_on(everything, spec) or settings.cluster_wait_seconds() > 0:
            return []
        if nodes.may_grow_to(spec):
            return []
        raise InsufficientResourcesError(
            f"{describe_request(spec)} do not fit on this Ray cluster, which has "
            f"{describe_nodes(everything, spec)}; lower num_workers or resources_per_worker, or "
            "add nodes. If nodes will join later, LOCKSTEP_CLUSTER_WAIT_S=600 waits for them."
        )

    def capacity(self, spec: GroupSpec) -> int:
        """See :class:`Engine`. What this driver itself has reserved counts as free."""
        return room_on(self._known_nodes().usable(), spec)

    def watch_capacity(self, loop: EventLoop, changed: Callable[[], None]) -> Callable[[], None]:
        """See :class:`Engine`."""
        return self._known_nodes().watch(lambda: loop.call_soon(changed))

    def resources(self) -> tuple[float, tuple[str, ...]]:
        """See :class:`Engine`. Ray chooses the GPUs: their names are numbers only."""
        usable = self._known_nodes().usable()
        cpus = sum(one.free.get("CPU", 0.0) for one in usable)
        gpus = int(sum(one.free.get("GPU", 0.0) for one in usable))
        return cpus, tuple(map(str, range(gpus)))

    def start(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
    ) -> WorkerGroup:
        """See :class:`Engine`."""
        self.connect()
        return RemoteGroup(spec, loop, emit, output, self)

    def close(self) -> None:
        """See :class:`Engine`."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return
        with self._lock:
            agents, self._agents = list(self._agents.values()), {}
            started_ray, self._started_ray = self._started_ray, False
            nodes, self._nodes = self._nodes, None
            heartbeats, self._heartbeats = self._heartbeats, None
            kept, self._kept = self._kept, []
        import ray

        if nodes is not None:
            nodes.close()
        if ray.is_initialized():
            for _, placement in kept:
                self._remove(placement.handle)
        # Without Ray, the agents see their lifelines close. A call would start a new Ray here.
        if ray.is_initialized():
            with contextlib.suppress(Exception):  # an agent may be gone already
                ray.get([agent.retire.remote() for agent in agents], timeout=10)
            for agent in agents:
                with contextlib.suppress(Exception):
                    ray.kill(agent)
        if heartbeats is not None:
            heartbeats.close()
        self._releases.drain()
        if started_ray:
            ray.shutdown()

    # ----------------------------------------------------------------- for groups, in any thread

    def follow(self, heard: Callable[[News], None]) -> Callable[[], None]:
        """See :class:`Cluster`."""
        with self._lock:
            self._followers.append(heard)
        for going in self._known_nodes().going():
            heard(going)
        return lambda: self._followers.remove(heard)

    def place(
        self, spec: GroupSpec, waiting: Callable[[str], None], is_cancelled: Callable[[], bool]
    ) -> Placement | None:
        """See :class:`Cluster`."""
        from ray.util import placement_group_table

        nodes = self._known_nodes()
        request = _request(spec)
        if (kept := self._take_kept(request)) is not None:
            return kept
        begun, told, limit_s = time.monotonic(), "", settings.cluster_wait_seconds()
        group, avoided = self._reserve(spec)
        try:
            while not group.wait(SHORT_WAIT_S):
                if is_cancelled():
                    self._remove(group)
                    return None
                text, fits = self._why_waiting(spec, nodes)
                if not fits and limit_s and time.monotonic() - begun > limit_s:
                    raise EngineError(f"{text}, and none came in {limit_s:g} s")
                if text != told:
                    told = text
                    waiting(text)
                if nodes.avoided() != avoided:
                    # Ray may be trying to reserve on a node that is lost.
                    self._remove(group)
                    group, avoided = self._reserve(spec)
            node_of = placement_group_table(group)["bundles_to_node_id"]
            places = [node_of[index] for index in range(spec.size)]
            bundles = ranks_by_node(places)
            placed = [Node(places[index], nodes.address(places[index])) for index in bundles]
            nodes.reserved(group, places, bundle_of(spec))
            gpus = self._gpus(group, spec, bundles)
        except BaseException:
            self._remove(group)
            raise
        return Placement(group, placed, gpus, request)

    def release(self, placement: Placement) -> None:
        """See :class:`Cluster`. It is kept for a moment: the next attempt or trial may need it."""
        with self._lock:
            self._kept.append((time.monotonic(), placement))

    def _take_kept(self, request: Any) -> Placement | None:
        """A placement group that was given back just now, and is what is asked for.

        All others go, whose room may be needed. A new one would wait for that: Ray looks for room
        again after up to a second.
        """
        nodes = self._known_nodes()
        taken = None
        with self._lock:
            kept, self._kept = self._kept, []
            for since, placement in kept:
                ids = [node.id for node in placement.nodes]
                if placement.request != request or not nodes.all_usable(ids):
                    self._remove(placement.handle)
                elif taken is None:
                    taken = placement
                else:
                    self._kept.append((since, placement))
        return taken

    def _end_kept(self) -> None:
        """Give back what nobody has needed. Called once a second."""
        old = time.monotonic() - KEPT_S
        with self._lock:
            for since, placement in self._kept:
                if since < old:
                    self._remove(placement.handle)
            self._kept = [one for one in self._kept if one[0] >= old]

    def open_shares(
        self, shares: Sequence[Share], address: tuple[str, int], secret: bytes
    ) -> list[str]:
        """See :class:`Cluster`."""
        try:
            waiting, notes = list(shares), list[str]()
            for attempt in range(2):
                notes += self._start_missing(waiting)
                self._check_routes([share.node for share in shares])
                waiting = self._open(waiting, address, secret, last=attempt == 1)
                if not waiting:
                    break
            return notes
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(_short(error)) from error

    def _open(
        self, shares: Sequence[Share], address: tuple[str, int], secret: bytes, *, last: bool
    ) -> list[Share]:
        """Start shares; returns those whose agent had died before."""
        import ray
        from ray.exceptions import RayActorError

        with self._lock:
            agents = {share.node.id: self._agents.get(share.node.id) for share in shares}
        calls = {}
        for share in shares:
            agent = agents[share.node.id]
            if agent is not None:
                # Ray's own copy of the working directory is the agent's.
                sent = share._replace(cwd=None) if self._moved else share
                calls[agent.open_group.remote(sent, address, secret)] = share
        failed = [share for share in shares if agents[share.node.id] is None]
        while calls:
            # A frozen agent never answers: it is lost when it is fenced.
            done, _ = ray.wait(list(calls), num_returns=1, timeout=SHORT_WAIT_S)
            for call in done:
                share = calls.pop(call)
                try:
                    ray.get(call)
                except RayActorError as error:
                    # The agent has died since its last use. Start a new one, once.
                    self._discard(share.node, agents[share.node.id])
                    if last:
                        raise EngineError(
                            f"the agent on node {share.node.address} ended at once: {_short(error)}"
                        ) from error
                    failed.append(share)
            for call, share in list(calls.items()):
                with self._lock:
                    current = self._agents.get(share.node.id) is agents[share.node.id]
                    loss = self._losses.get(share.node.id, "it is gone")
                if not current:
                    del calls[call]
                    if last or share.node.id in self._known_nodes().avoided():
                        raise EngineError(loss)
                    failed.append(share)
        return failed

    def _check_routes(self, nodes: Sequence[Node]) -> None:
        """Make sure that every node reaches the first one, where the workers will meet.

        Otherwise they would wait for each other until the framework's own time-out.
        """
        import ray

        first, *others = list(dict.fromkeys(nodes))
        new = [node for node in others if (node.id, first.id) not in self._routes]
        with self._lock:
            agents = {n.id: self._agents[n.id] for n in (first, *new) if n.id in self._agents}
        if not new or len(agents) <= len(new):
            return  # one is lost: the caller starts it again, or says so
        meeting = agents[first.id]
        try:
            address = ray.get(meeting.open_port.remote(first.address), timeout=ROUTES_S)
            try:
                calls = [agents[node.id].reaches.remote(address) for node in new]
                why = ray.get(calls, timeout=ROUTES_S)
            finally:
                meeting.close_port.remote(address[1])
        except ray.exceptions.RayActorError:
            return  # the caller finds out which agent is lost
        except ray.exceptions.GetTimeoutError as error:
            where = ", ".join(node.address for node in (first, *new))
            raise EngineError(
                f"the agents on {where} did not answer in {ROUTES_S:g} s whether they reach each "
                "other; the nodes may be overloaded or cut off"
            ) from error
        for node, text in zip(new, why, strict=True):
            if text:
                raise EngineError(
                    f"node {node.address} cannot connect to node {first.address}, port "
                    f"{address[1]} ({text}): the nodes of a cluster must reach each other on all "
                    "ports; check routes and firewalls"
                )
        self._routes.update((node.id, first.id) for node in new)

    def _reserve(self, spec: GroupSpec) -> tuple[Any, frozenset[str]]:
        from ray.util import placement_group

        avoided = self._known_nodes().avoided()
        selectors = [dict(selector) for selector in selectors_of(spec)]
        if avoided:
            # Ray takes up to a minute to see that these are gone.
            without = {_NODE_ID_LABEL: f"!in({','.join(sorted(avoided))})"}
            selectors = [{**without, **selector} for selector in selectors]
        group = placement_group(
            [bundle_of(spec)] * spec.size,
            strategy=spec.placement_strategy,
            bundle_label_selector=selectors if any(selectors) else None,
        )
        return group, avoided

    def _why_waiting(self, spec: GroupSpec, nodes: _Nodes) -> tuple[str, bool]:
        usable = nodes.usable()
        everything = [one._replace(free=one.total) for one in usable]
        if spec.size > room_on(everything, spec):
            text = f"{describe_request(spec)} need nodes that the Ray cluster does not have now"
            return f"{text}; it has {describe_nodes(usable, spec)}", False
        text = f"{describe_request(spec)} are not free on the Ray cluster yet"
        return f"{text}; it has {describe_nodes(usable, spec)}; ray status shows who uses it", True

    def _gpus(self, group: Any, spec: GroupSpec, bundles: Sequence[int]) -> list[list[str]]:
        if not spec.gpus_per_worker:
            return [[] for _ in bundles]
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

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
        found: list[list[str]] = ray.get(ask)
        return found

    def _remove(self, group: Any) -> None:
        from ray.util import remove_placement_group

        def remove() -> None:
            remove_placement_group(group)
            nodes = self._nodes
            if nodes is not None:
                nodes.given_back(group)

        self._releases.submit(remove)

    # ------------------------------------------------------------------------------------ agents

    def _start_missing(self, shares: Sequence[Share]) -> list[str]:
        """Start the agents of these nodes where there is none yet; returns what differs there."""
        with self._starting:
            missing = [share for share in shares if share.node.id not in self._agents]
            return self._start_agents(missing) if missing else []

    def _start_agents(self, shares: Sequence[Share]) -> list[str]:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        secret = secrets.token_bytes(32)
        nodes = [share.node for share in shares]
        lifelines: dict[int, socket.socket] = {}
        mine = own_modules()
        with contextlib.closing(EventLoop()) as loop:
            listener = LinkListener(self.host, secret, loop, lifelines.__setitem__)
            actors = [
                ray.remote(AgentActor)
                .options(
                    num_cpus=0,
                    max_concurrency=_AGENT_CALLS,
                    name=f"{share.node.id}-{secrets.token_hex(8)}",
                    namespace=_NAMESPACE,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(share.node.id, soft=False),
                )
                .remote(listener.address, secret, index, share.spec)
                for index, share in enumerate(shares)
            ]
            ready = [actor.installed.remote(list(mine)) for actor in actors]
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
                notes = []
                for node, (theirs, sums) in zip(nodes, ray.get(ready), strict=True):
                    if difference := version_difference(node.address, theirs, versions()):
                        raise EngineError(difference)
                    notes += module_differences(node.address, sums, mine)
            except BaseException:
                for actor in actors:
                    ray.kill(actor)
                for sock in lifelines.values():
                    sock.close()
                raise
            finally:
                listener.close()
        known = self._known_nodes()
        with self._lock:
            heartbeats = self._heartbeats = self._heartbeats or Heartbeats(self._agent_lost)
            self._agents.update({n.id: actor for n, actor in zip(nodes, actors, strict=True)})
        for index, (node, actor) in enumerate(zip(nodes, actors, strict=True)):
            look = partial(greets, known.service(node.id), LOOK_S)
            heartbeats.add(node, lifelines[index], look, partial(_ask, actor))
        return notes

    def _discard(self, node: Node, agent: Any) -> None:
        with self._lock:
            if self._agents.get(node.id) is not agent:
                return
            del self._agents[node.id]
        if self._heartbeats is not None:
            self._heartbeats.forget(node)

    def _agent_lost(self, loss: Loss) -> None:
        """Called in the thread of the heartbeats."""
        with self._lock:
            agent = self._agents.pop(loss.node.id, None)
            self._losses[loss.node.id] = loss.detail
            nodes = self._nodes
        if loss.whole_node and nodes is not None:
            # Before the group hears of it, which asks for the capacity then.
            nodes.lose(loss.node.id)
            if loss.fenced:
                readmit = partial(_when_back, agent, partial(nodes.readmit, loss.node.id))
                threading.Thread(target=readmit, name="lockstep-probe", daemon=True).start()
        self._tell(NodeGone(loss.node.id, loss.detail))

    def agent_on(self, node_id: str) -> Any:
        """The agent of a node; None if there is none."""
        with self._lock:
            return self._agents.get(node_id)

    def agent_beside(self, node_id: str) -> tuple[Node, Any] | None:
        """Another node and its agent, always the same for a node while these nodes stay."""
        others = {n.node.id: n.node for n in self._known_nodes().usable() if n.node.id != node_id}
        with self._lock:
            running = [one for one in others if one in self._agents]
        ring = sorted(running or others)
        if not ring:
            return None
        peer = others[next((one for one in ring if one > node_id), ring[0])]
        # No worker runs there, only the agent.
        self._start_missing([Share(0, peer, (), 0, GroupSpec(0, "", b""), [], None)])
        agent = self.agent_on(peer.id)
        return None if agent is None else (peer, agent)

    def node(self, node_id: str) -> Node:
        """A node as the other nodes reach it."""
        return Node(node_id, self._known_nodes().address(node_id))

    def _tell(self, news: News) -> None:
        for heard in list(self._followers):
            heard(news)

    # --------------------------------------------------------------------------------------- Ray

    def _known_nodes(self) -> _Nodes:
        self.connect()
        with self._lock:
            if self._nodes is None:
                self._nodes = _Nodes(self._tell, self._end_kept)
            return self._nodes

    def connect(self) -> None:
        """Use the Ray that is initialised here, or else connect to the cluster."""
        import ray

        if os.getpid() != self._owner:
            raise EngineError(
                "engine 'ray' was started in another process, which has forked this one; Ray "
                "does not survive a fork: start a new process instead."
            )
        with self._lock:
            if self.host and ray.is_initialized():
                return
            runtime_env = dict(runtime.current().runtime_env)
            if not ray.is_initialized():
                current = runtime.current()
                address = current.address
                _refuse_client(address)
                start = partial(
                    ray.init,
                    address,
                    # What workers print comes through lockstep; agents print nothing. Tasks of a
                    # script that uses Ray's own Core may print.
                    log_to_driver=settings.ray_names(),
                    logging_level=logging.WARNING,
                    include_dashboard=None,
                    runtime_env=runtime_env or None,
                )
                limits = {"num_cpus": current.num_cpus, "num_gpus": current.num_gpus}
                try:
                    try:
                        start(**limits)
                    except ValueError:
                        if not any(limits.values()):
                            raise
                        start()  # a cluster that runs already has its own numbers
                except ConnectionError as error:
                    raise EngineError(
                        f"no Ray cluster answers at {address or 'the default address'} ({error}); "
                        "start one with 'ray start --head', or give "
                        "lockstep.init(engine='ray', address='HOST:PORT')."
                    ) from error
                self._started_ray = True
            elif ray.util.client.ray.is_connected():
                _refuse_client("ray://…")
            elif runtime_env:
                raise EngineError(
                    f"lockstep.init(runtime_env={{{next(iter(runtime_env))!r}: …}}) comes too "
                    "late: this process has called ray.init() already; give it to ray.init()."
                )
            self.host = ray.util.get_node_ip_address()
            self.cluster = cluster_address()
            self._moved = "working_dir" in (ray.get_runtime_context().runtime_env or {})


class _RayMemory(NodeMemory):
    """The snapshots that this driver's agents keep."""

    def __init__(self, engine: RayEngine) -> None:
        self._engine = engine
        self._secret = secrets.token_bytes(32)
        self._keys = itertools.count(1)
        self._agents: dict[int, Any] = {}
        """Key → the agent that has the snapshot: a node may get another one."""
        self._copies = JobThread("lockstep-ray-copies")

    def keep(self, node: str, place: MemoryPlace) -> Future[Holder]:
        """See :class:`NodeMemory`."""
        agent = self._engine.agent_on(node)
        if agent is None:
            gone: Future[Holder] = Future()
            gone.set_exception(EngineError(f"node {node} is gone"))
            return gone
        key = next(self._keys)
        self._agents[key] = agent
        kept: Future[Holder] = agent.keep_snapshot.remote(
            key, place, self._engine.node(node), self._secret
        ).future()
        return kept

    def copy(self, holder: Holder, sums: tuple[int, ...]) -> Future[Holder]:
        """See :class:`NodeMemory`."""
        copied: Future[Holder] = Future()

        def begin() -> None:
            try:
                beside = self._engine.agent_beside(holder.node)  # it may have to be started
                if beside is None:
                    raise EngineError("the cluster has no other node")
            except Exception as error:
                copied.set_exception(error)
                return
            peer, agent = beside
            key = next(self._keys)
            self._agents[key] = agent
            call = agent.fetch_snapshot.remote(key, holder, sums, peer, self._secret).future()
            call.add_done_callback(lambda _: _pass_on(call, copied))

        self._copies.submit(begin)
        return copied

    def drop(self, holders: Iterable[Holder]) -> None:
        """See :class:`NodeMemory`."""
        for holder in holders:
            agent = self._agents.pop(holder.key, None)
            if agent is not None:
                with contextlib.suppress(Exception):  # Ray may have been shut down
                    agent.drop_snapshots.remote([holder.key])

    def is_alive(self, holder: Holder) -> bool:
        """See :class:`NodeMemory`."""
        agent = self._agents.get(holder.key)
        return agent is not None and self._engine.agent_on(holder.node) is agent


def _pass_on(done: Future[Holder], waiting: Future[Holder]) -> None:
    error = done.exception()
    if error is None:
        waiting.set_result(done.result())
    else:
        waiting.set_exception(EngineError(_short(error)))


def cluster_address() -> str:
    """The address of the cluster that this process has joined."""
    import ray

    address: str = ray.get_runtime_context().gcs_address
    return address


def join_cluster(address: str) -> None:
    """Make this process, a worker, a client of the cluster, for what only Ray can do.

    Raises:
        EngineError: the cluster does not answer.
    """
    ray_names.use_ray_itself()
    import ray

    if ray.is_initialized():
        return
    # Ray would end this process at a SIGTERM, which is a preemption here.
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise EngineError(f"the Ray cluster at {address} does not answer: {error}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def ask_nodes(
    address: str,
    workers: Mapping[str, Sequence[tuple[int, int]]],
    is_complete: Callable[[list[str]], bool],
    seconds: float,
) -> dict[str, list[list[str] | str] | str]:
    """Ask workers on other nodes for their stacks, through the agents there.

    Args:
        address: the cluster's.
        workers: node → its workers, as in ``ask_workers``.
        is_complete, seconds: as in ``ask_workers``.

    Returns:
        Node → the answers of its workers, or why there are none.
    """
    try:
        ray_names.use_ray_itself()
        import ray
    except ImportError as error:
        return dict.fromkeys(workers, f"this Python cannot ask its node ({error})")
    joined = not ray.is_initialized()
    try:
        if not greets(_split(address), LOOK_S):
            return dict.fromkeys(workers, f"the Ray cluster at {address} does not answer")
        join_cluster(address)
        names = [
            one["name"]
            for one in ray.util.list_named_actors(all_namespaces=True)
            if one["namespace"] == _NAMESPACE
        ]
        # Drivers have agents of their own on a node. Each of these can ask any worker there.
        calls = {
            node: [
                agent.stacks.remote(asked, is_complete, seconds)
                for name in names
                if name.startswith(f"{node}-") and (agent := _found(name)) is not None
            ]
            for node, asked in workers.items()
        }
        deadline = time.monotonic() + seconds + SHORT_WAIT_S
        return {node: _first_answer(found, deadline) for node, found in calls.items()}
    except Exception as error:  # whatever it is, the workers of this machine are shown
        return dict.fromkeys(workers, f"the Ray cluster could not be asked: {_short(error)}")
    finally:
        if joined:
            ray.shutdown()


def _found(name: str) -> Any:
    """The agent of this name; None if it has ended since it was listed."""
    import ray

    try:
        return ray.get_actor(name, _NAMESPACE)
    except ValueError:
        return None


def _first_answer(calls: Sequence[Any], deadline: float) -> list[list[str] | str] | str:
    import ray

    problem = "no agent of lockstep is on its node any more"
    for call in calls:
        try:
            answers: list[list[str] | str] = ray.get(
                call, timeout=max(0.0, deadline - time.monotonic())
            )
            return answers
        except ray.exceptions.GetTimeoutError:
            problem = "its node does not answer"
        except Exception as error:
            problem = _short(error)
    return problem


class _Nodes:
    """The nodes of the cluster as Ray lists them, looked at once a second by a thread.

    Nobody waits for Ray here: after the first look everything is answered from what was seen last.
    """

    def __init__(self, tell: Callable[[News], None], each_time: Callable[[], None]) -> None:
        import ray

        self._tell = tell
        self._each_time = each_time
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._watchers: list[Callable[[], None]] = []
        self._lost: dict[str, float] = {}
        """Node → when it was lost. Ray does not know yet."""
        self._going: dict[str, float] = {}
        """Node that is drained → when it goes."""
        self._own: dict[str, tuple[Sequence[str], Mapping[str, float]]] = {}
        """Placement group → its bundles' nodes, and what each bundle is."""
        self._own_changed = 0.0
        self._others: dict[str, dict[str, float]] = {}
        """Node → what others use there."""
        self._others_seen: dict[str, dict[str, float]] = {}
        self._rows: dict[str, Any] = {}
        self._head = _split(ray.get_runtime_context().gcs_address)
        self._head_answers = True
        self._look()
        self._others = self._others_seen  # this driver has reserved nothing yet
        threading.Thread(target=self._follow, name="lockstep-ray-nodes", daemon=True).start()
        # A look that is under way when the head dies waits until Ray ends this process: the head
        # is watched by another thread.
        threading.Thread(target=self._follow_head, name="lockstep-ray-head", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def usable(self) -> list[ClusterNode]:
        """The nodes that can be used."""
        with self._lock:
            return [
                ClusterNode(
                    Node(node_id, row["NodeManagerAddress"]),
                    row["Resources"],
                    {
                        name: amount - self._others.get(node_id, {}).get(name, 0.0)
                        for name, amount in row["Resources"].items()
                    },
                    row.get("Labels") or {},
                )
                for node_id, row in self._rows.items()
                if node_id not in self._lost and node_id not in self._going
            ]

    def all_usable(self, ids: Sequence[str]) -> bool:
        """Whether none of these nodes is dead, lost or drained."""
        with self._lock:
            return all(
                i in self._rows and i not in self._lost and i not in self._going for i in ids
            )

    def avoided(self) -> frozenset[str]:
        """Nodes that Ray takes for alive and that are lost."""
        with self._lock:
            return frozenset(self._lost.keys() & self._rows.keys())

    def going(self) -> list[NodeGoing]:
        with self._lock:
            return [NodeGoing(node_id, when) for node_id, when in self._going.items()]

    def address(self, node_id: str) -> str:
        return self.service(node_id)[0]

    def service(self, node_id: str) -> tuple[str, int]:
        """Where the node's raylet listens."""
        if node_id not in self._rows:
            self._look()  # it has just come
        row = self._rows.get(node_id, {})
        return row.get("NodeManagerAddress", ""), row.get("NodeManagerPort", 0)

    def may_grow_to(self, spec: GroupSpec) -> bool:
        """Whether an autoscaler could add what a group needs."""
        from ray._private.state import state

        with contextlib.suppress(Exception):  # not a part of Ray's public API
            most = state.get_max_resources_from_cluster_config()
            if most:
                bundle = bundle_of(spec).items()
                return all(most.get(name, 0) >= amount * spec.size for name, amount in bundle)
        return False

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed) if changed in self._watchers else None

    def reserved(self, group: Any, places: Sequence[str], bundle: Mapping[str, float]) -> None:
        with self._lock:
            self._own[group.id.hex()] = (places, bundle)
            self._own_changed = time.monotonic()

    def given_back(self, group: Any) -> None:
        with self._lock:
            self._own.pop(group.id.hex(), None)
            self._own_changed = time.monotonic()

    def lose(self, node_id: str) -> None:
        with self._lock:
            self._lost[node_id] = time.monotonic()
        self._changed()

    def readmit(self, node_id: str) -> None:
        with self._lock:
            self._lost.pop(node_id, None)
        self._changed()

    # ----------------------------------------------------------------------------- in the thread

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_AGAIN_S):
            self._each_time()
            if not self._head_answers:
                continue
            with contextlib.suppress(Exception):  # Ray may have been shut down
                before = self._signature()
                self._look()
                if self._signature() != before and not self._ended.is_set():
                    self._changed()

    def _follow_head(self) -> None:
        missed = 0
        while not self._ended.wait(LOOK_AGAIN_S):
            self._head_answers = greets(self._head, LOOK_S)
            missed = 0 if self._head_answers else missed + 1
            if missed == HEAD_MISSED:
                self._tell(HeadGone(_no_head(self._head)))

    def _changed(self) -> None:
        for changed in list(self._watchers):
            changed()

    def _signature(self) -> Any:
        return [(one.node.id, one.free) for one in self.usable()]

    def _look(self) -> None:
        import ray
        from ray._private.state import state

        rows = {row["NodeID"]: row for row in ray.nodes() if row["Alive"]}
        free = state.available_resources_per_node()
        drained = state.get_draining_nodes()
        now, news = time.monotonic(), []
        with self._lock:
            self._rows = rows
            for node_id, lost_at in list(self._lost.items()):
                if node_id not in rows:
                    del self._lost[node_id]
                elif now - lost_at > RAY_KNOWS_S:
                    del self._lost[node_id]  # Ray has looked at it many times since
            for node_id, deadline_ms in drained.items():
                if node_id in rows and node_id not in self._going:
                    when = deadline_ms / 1000 if deadline_ms else time.time() + NO_DEADLINE_S
                    self._going[node_id] = when
                    news.append(NodeGoing(node_id, when))
            for node_id in self._going.keys() - drained.keys():
                del self._going[node_id]
            others = {
                node_id: self._used_by_others(node_id, row["Resources"], free[node_id])
                for node_id, row in rows.items()
                if node_id in free
            }
            # Ray counts a placement group of this driver a moment before or after this table does:
            # what is seen twice is so.
            if now - self._own_changed > SETTLE_S and others == self._others_seen:
                self._others = others
            self._others_seen = others
        for going in news:
            self._tell(going)

    def _used_by_others(
        self, node_id: str, total: Mapping[str, float], free: Mapping[str, float]
    ) -> dict[str, float]:
        mine: dict[str, float] = {}
        for places, bundle in self._own.values():
            count = places.count(node_id)
            for name, amount in bundle.items():
                mine[name] = mine.get(name, 0.0) + count * amount
        return {
            name: max(0.0, amount - free.get(name, 0.0) - mine.get(name, 0.0))
            for name, amount in total.items()
        }


def _request(spec: GroupSpec) -> Any:
    selectors = [sorted(one.items()) for one in selectors_of(spec)]
    return spec.size, bundle_of(spec), spec.placement_strategy, selectors


def _no_head(head: tuple[str, int]) -> str:
    return (
        f"Ray's head at {head[0]}:{head[1]} does not answer. The workers continue, but Ray ends "
        "this process, by default after 60 s, unless the head comes back. What is committed is "
        "kept: "
        "RunConfig(name=…, resume='auto') resumes the run on a new cluster"
    )


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _ask(agent: Any) -> bool:
    import ray

    try:
        answered: bool = ray.get(agent.answer.remote(), timeout=FENCE_S - SUSPECT_S)
    except Exception:
        return False
    return answered


def _when_back(agent: Any, call: Callable[[], None]) -> None:
    """Wait until a frozen node answers again: its agent ends then, and Ray reports that."""
    import ray

    with contextlib.suppress(Exception):
        ray.get(agent.answer.remote())
    call()


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
