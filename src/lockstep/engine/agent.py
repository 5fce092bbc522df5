"""What runs on each node of a cluster for a driver elsewhere: fork servers, and their news.

The agent is to the fork servers of its node what the driver is to those of its own machine. It
opens every worker's connection to the driver, and passes it on when the worker is forked: from then
on the worker and the driver speak without the agent. The agent itself has one connection for each
worker group, with what only the workers' own machine can do or know:

    driver ── Order (Interrupt, DumpStacks, Kill) ──▶ agent ──▶ fork server
    driver ◀── Output, Ended, Lost, Sampled ───────── agent
    driver ── Written ──────────────────────────────▶ agent     the output has been dealt with
    driver ── Measure ──────────────────────────────▶ agent     what do the workers use?

The agent's lifeline carries heartbeats (``heartbeats.py``). When it closes, the driver is gone, and
the agent ends with everything it has started. When the process that has started the agent ends (on
Ray: the node's raylet), the node is lost: the agent says so, and ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import sysconfig
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from lockstep import __version__, settings
from lockstep.engine.base import GroupSpec, Node
from lockstep.engine.forkserver import DumpStacks, Ended, Interrupt, Kill, Spawn
from lockstep.engine.heartbeats import ORPHANED, PING, PONG
from lockstep.engine.links import OpenPorts, link_to, reaches
from lockstep.engine.loop import EventLoop
from lockstep.engine.processes import STACK_SIGNAL, current_directory, kill_family
from lockstep.engine.resources import worker_environment
from lockstep.engine.servers import ForkServer, ServerPool, import_path
from lockstep.engine.snapshots import SnapshotStore
from lockstep.engine.usage import sample_workers
from lockstep.engine.wire import Connection, send_with_files
from lockstep.errors import EngineError

__all__ = [
    "Agent",
    "Lost",
    "Measure",
    "Order",
    "Output",
    "Share",
    "Written",
    "control_role",
    "module_differences",
    "module_sums",
    "own_modules",
    "version_difference",
    "versions",
]

UNWRITTEN = 4 << 20
"""How many bytes of output may be on their way to the driver; then workers wait in ``print``."""

UNHEARD_MS = 30_000
"""How long an answer to the driver may stay unacknowledged; then the driver is gone."""

RETIRED_S = 10.0
"""How long a retired agent waits to be ended; Ray would call its own exit a failure."""

_COMPARED = ("torch", "tensorflow", "cloudpickle")
_SET_BY_RAY = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONBREAKPOINT")
_NICENESS = b"RAY_worker_niceness"
"""Where it is set, the node's owner wants it."""


class Share(NamedTuple):
    """What one node runs of a worker group."""

    number: int
    """Which of the group's nodes this is."""
    node: Node
    ranks: tuple[int, ...]
    size: int
    """How many workers the group has on all nodes."""
    spec: GroupSpec
    """With this node's workers only, and without the payload, which the driver sends itself."""
    argv: list[str]
    cwd: str | None
    """The workers' directory; None: the agent's own."""


class Order(NamedTuple):
    """What the fork server must do, and the workers' pids, in case it does not answer."""

    message: Interrupt | DumpStacks | Kill
    pids: dict[int, int]


class Output(NamedTuple):
    """Some bytes that a worker has printed."""

    rank: int
    data: bytes


class Written(NamedTuple):
    """The driver has handled this number of bytes of output."""

    size: int


class Measure(NamedTuple):
    """The driver wants to know what these workers use: rank → pid."""

    pids: dict[int, int]


class Lost(NamedTuple):
    """The fork server has ended, and all workers of this share with it."""

    detail: str


def versions() -> dict[str, str]:
    """What must be the same on the driver and on all nodes; a framework only where it is there."""
    found = {"Python": ".".join(map(str, sys.version_info[:2])), "lockstep": __version__}
    for name in _COMPARED:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def version_difference(address: str, theirs: Mapping[str, str], mine: Mapping[str, str]) -> str:
    """How a node differs from the driver, in one sentence; empty if it does not."""
    for name in mine:
        if theirs.get(name) != mine[name]:
            has = f"{name} {theirs[name]}" if name in theirs else f"no {name}"
            return (
                f"node {address} has {has}, and the driver has {name} {mine[name]}; install the "
                "same versions on all nodes"
            )
    return ""


def own_modules() -> dict[str, int]:
    """The user's own modules that this process has imported, with a check sum of each file.

    What is installed is compared by version; what is not has no version.
    """
    folders = ("stdlib", "purelib", "platlib")
    installed = tuple({sysconfig.get_path(name) + os.sep for name in folders})
    package = str(Path(__file__).parent.parent) + os.sep
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or not isinstance(file, str) or not file.endswith(".py"):
            continue
        if not file.startswith((*installed, package)) and (check := _check_sum(file)) is not None:
            found[name] = check
    return found


def module_sums(names: Iterable[str]) -> dict[str, int]:
    """Check sums of these modules as they would be imported here; without those that are not."""
    found: dict[str, int] = {}
    for name in names:
        inner = name.replace(".", os.sep)
        for folder in import_path():
            for file in (f"{inner}.py", os.path.join(inner, "__init__.py")):
                check = _check_sum(os.path.join(folder, file))
                if check is not None:
                    found.setdefault(name, check)
    return found


def module_differences(
    address: str, theirs: Mapping[str, int], mine: Mapping[str, int]
) -> list[str]:
    """The modules that a node has in another version than the driver, in one sentence."""
    differing = sorted(name for name in theirs if theirs[name] != mine[name])
    if not differing:
        return []
    shown = ", ".join(differing[:5]) + (", …" if len(differing) > 5 else "")
    return [
        f"Node {address} has other files than the driver for the module(s) {shown}: copy yours "
        "there, or send them with lockstep.init(runtime_env={'working_dir': '.'})"
    ]


def _check_sum(file: str) -> int | None:
    try:
        return zlib.crc32(Path(file).read_bytes())
    except OSError:
        return None


def control_role(index: int) -> int:
    """The role of an agent's connection for a group; a worker's is its rank."""
    return -1 - index


class Agent:
    """Serves worker groups on one node until its lifeline closes.

    Args:
        address, secret: where the driver waits for the lifeline.
        role: which of the driver's agents this is.
        spec: what the first group is like. Its fork server begins to import while the driver
            compares versions and routes.
    """

    def __init__(
        self, address: tuple[str, int], secret: bytes, role: int, spec: GroupSpec | None = None
    ) -> None:
        _undo_ray()
        self._pool = ServerPool()
        if spec is not None:
            with contextlib.suppress(OSError, EngineError):  # open_group says so
                self._pool.prepare(spec)
        self._retired = False
        self._ports = OpenPorts()
        self._loop = EventLoop()
        self.snapshots = SnapshotStore(self._loop)
        self._lifeline = link_to(address, secret, role)
        self._lifeline.setblocking(False)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # An answer that nobody acknowledges: the driver's machine is gone.
            self._lifeline.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS)
        self._loop.watch(self._lifeline.fileno(), self._lifeline_readable)
        self._follow_parent()
        threading.Thread(
            target=lambda: self._loop.run_until(lambda: False), name="lockstep-agent", daemon=True
        ).start()

    def open_group(self, share: Share, address: tuple[str, int], secret: bytes) -> None:
        """Start a share of a group; its workers and its news go to ``address``.

        Raises:
            EngineError: the driver cannot be reached from here, or no process can be started.
        """
        with contextlib.ExitStack() as undo:
            control = undo.enter_context(link_to(address, secret, control_role(share.number)))
            workers = [undo.enter_context(link_to(address, secret, rank)) for rank in share.ranks]
            server, session, pipes = self._spawn(share, workers, undo)
            undo.pop_all()
        for worker in workers:
            worker.close()  # the worker itself has it now
        release = partial(self._pool.release, server)
        group = _NodeGroup(self._loop, server, release, session, control, pipes)
        self._loop.call_soon(group.begin)

    def open_port(self, host: str) -> tuple[str, int]:
        """Open a port that other nodes try to reach, until ``close_port``."""
        return self._ports.open(host)

    def close_port(self, number: int) -> None:
        """Close a port of ``open_port``."""
        self._ports.close(number)

    def reaches(self, address: tuple[str, int]) -> str:
        """Why a port of another node cannot be reached from here; empty if it can."""
        return reaches(address)

    def close(self) -> None:
        """End everything that this agent has started."""
        self._pool.close()

    def retire(self) -> None:
        """End everything; the agent itself is about to be ended by whoever has started it."""
        # Only call_soon may be called by another thread.
        self._loop.call_soon(self._exit_later)
        self._retired = True
        self.close()

    def _exit_later(self) -> None:
        self._loop.call_later(RETIRED_S, lambda: os._exit(0))

    def _follow_parent(self) -> None:
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                parent = os.pidfd_open(os.getppid())
                self._loop.watch(parent, self._orphaned)

    def _orphaned(self) -> None:
        with contextlib.suppress(OSError):
            self._lifeline.send(ORPHANED)
        self.close()
        os._exit(0)

    def _spawn(
        self, share: Share, workers: list[socket.socket], undo: contextlib.ExitStack
    ) -> tuple[ForkServer, socket.socket, dict[int, int]]:
        for _ in range(2):
            server = self._pool.acquire(share.spec)
            with contextlib.ExitStack() as attempt:
                attempt.callback(self._pool.release, server)
                try:
                    session = attempt.enter_context(server.open_session())
                    session.settimeout(settings.start_timeout_seconds())
                    pipes = {}
                    for place, (rank, worker) in enumerate(zip(share.ranks, workers, strict=True)):
                        read_end, write_end = os.pipe()
                        attempt.callback(os.close, read_end)
                        try:
                            spawn = _spawn_order(share, place)
                            send_with_files(session, spawn, [worker.fileno(), write_end])
                        finally:
                            os.close(write_end)
                        pipes[rank] = read_end
                    undo.push(attempt.pop_all())
                    return server, session, pipes
                except ConnectionError:
                    # The server has died since its last use. Start a new one, once.
                    self._pool.discard(server)
        raise EngineError(
            f"the fork server on {socket.gethostname()} ended as soon as it was started "
            f"({server.ending()}); check that lockstep can be imported there"
        )

    def _lifeline_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = b""
            with contextlib.suppress(ConnectionError, TimeoutError):
                data = self._lifeline.recv(1 << 12)
            if not data:
                self._loop.unwatch(self._lifeline.fileno())
                if not self._retired:
                    self.close()
                    os._exit(0)
            elif PING in data:
                self._lifeline.send(PONG)


class _NodeGroup:
    """One share, on the agent's loop."""

    def __init__(
        self,
        loop: EventLoop,
        server: ForkServer,
        release: Callable[[], None],
        session: socket.socket,
        control: socket.socket,
        pipes: dict[int, int],
    ) -> None:
        self._loop = loop
        self._server = server
        self._release = release
        self._pipes = pipes
        self._unwritten = 0
        self._waits = False
        self._sockets = session, control

    def begin(self) -> None:
        session, control = self._sockets
        self._control = Connection(
            control, self._loop, self._from_driver, self.close, lambda _: self.close()
        )
        self._session = Connection(
            session, self._loop, self._ended, self._server_gone, lambda _: self._server_gone()
        )
        for fd in self._pipes.values():
            os.set_blocking(fd, False)
        self._watch_pipes()

    def close(self) -> None:
        self._session.close()  # the server then kills the workers of this session
        self._control.close()
        for rank in list(self._pipes):
            self._close_pipe(rank)
        release, self._release = self._release, lambda: None
        release()

    def _from_driver(self, message: Any) -> None:
        if type(message) is Written:
            self._unwritten -= message.size
            if self._waits and self._unwritten < UNWRITTEN // 2:
                self._waits = False
                self._watch_pipes()
        elif type(message) is Measure:
            self._control.send(sample_workers(message.pids))
        elif self._server.stopped():
            self._do_it_here(message)
        else:
            self._session.send(message.message)

    def _do_it_here(self, order: Order) -> None:
        """What the server would do. It is stopped, so it reaps nobody: the numbers are valid."""
        kind = order.message
        for rank, pid in order.pids.items():
            if isinstance(kind, Interrupt):
                _signal(pid, signal.SIGINT)
            elif kind.rank not in (None, rank):
                continue
            elif isinstance(kind, DumpStacks):
                _signal(pid, STACK_SIGNAL)
            else:
                kill_family(pid)
                self._ended(Ended(rank, -signal.SIGKILL, "the fork server is stopped"))

    def _ended(self, message: Ended) -> None:
        # First what it has printed: the reason may be there.
        left = UNWRITTEN
        while left > 0 and (count := self._read(message.rank)):
            left -= count
        self._control.send(message)

    def _server_gone(self) -> None:
        self._session.close()
        self._control.send(Lost(f"the fork server that owns it is gone ({self._server.ending()})"))

    def _watch_pipes(self) -> None:
        for rank, fd in self._pipes.items():
            self._loop.watch(fd, partial(self._readable, rank))

    def _readable(self, rank: int) -> None:
        self._read(rank)
        if self._unwritten > UNWRITTEN:
            self._waits = True
            for fd in self._pipes.values():
                self._loop.unwatch(fd)

    def _read(self, rank: int) -> int:
        if rank not in self._pipes:
            return 0
        try:
            data = os.read(self._pipes[rank], 1 << 16)
        except BlockingIOError:
            return 0
        if data:
            self._unwritten += len(data)
            self._control.send(Output(rank, data))
        else:
            self._close_pipe(rank)
        return len(data)

    def _close_pipe(self, rank: int) -> None:
        fd = self._pipes.pop(rank)
        self._loop.unwatch(fd)
        os.close(fd)


def _spawn_order(share: Share, place: int) -> Spawn:
    rank = share.ranks[place]
    return Spawn(
        rank=rank,
        title=f"{share.spec.title}: rank {rank} of {share.size} (lockstep worker)",
        entry=share.spec.entry,
        environment=settings.child_environment(worker_environment(share.spec, place)),
        sys_path=import_path(),
        argv=share.argv,
        cwd=share.cwd if share.cwd is not None else current_directory(),
        node=share.node,
    )


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _undo_ray() -> None:
    """Ray gives the agent no GPU, one thread, Ray's debugger and a low priority.

    The workers are no part of that. The parent is the node's raylet, with the environment that the
    node's owner has given it.
    """
    raylet = os.getppid()
    try:
        raw = Path("/proc", str(raylet), "environ").read_bytes()
    except OSError:
        return
    before = dict(item.split(b"=", 1) for item in raw.split(b"\0") if b"=" in item)
    for name in _SET_BY_RAY:
        value = before.get(os.fsencode(name))
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = os.fsdecode(value)
    if _NICENESS not in before:
        _set_niceness(os.getpriority(os.PRIO_PROCESS, raylet))


def _set_niceness(value: int) -> None:
    """Of all threads: what one starts has that thread's. Only root may raise a priority."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread), value)
