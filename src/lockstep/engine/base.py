"""The engine contract: how worker processes are started, spoken to and ended.

An engine knows processes and bytes, not training. It starts ``size`` workers that each call one
function, ``entry(channel)``, and then carries messages both ways:

    driver                                    worker
    Engine.start(spec, …) ──── starts ──────▶ entry(channel)
    WorkerGroup.send(rank, m) ──────────────▶ channel.receive() -> m
    emit(WorkerMessage(rank, m)) ◀─────────── channel.send(m) / channel.post(m)
    emit(WorkerExited(rank, …)) ◀──────────── the process ends, however it ends
    emit(WorkerPreempted(rank)) ◀──────────── a notice to end soon (a SIGTERM; a node that goes)
    emit(EngineNotice(text)) ◀─ the engine    what the user should know, such as what it waits for
    emit(Sampled(…)) ◀───────── the engine    what workers use, after WorkerGroup.sample()
    WorkerGroup.interrupt() ────────────────▶ KeyboardInterrupt in entry's thread
    WorkerGroup.dump_stacks(rank) ──────────▶ its threads' stacks, into its output
    WorkerGroup.kill() ─────────────────────▶ gone, with every process it started
    WorkerGroup.abandon() ──────────────────▶ the same, and its end is not waited for
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from lockstep.engine.loop import EventLoop

__all__ = [
    "OUT_OF_MEMORY",
    "Channel",
    "Engine",
    "EngineEvent",
    "EngineNotice",
    "GpuUsage",
    "GroupSpec",
    "Holder",
    "MemoryPlace",
    "Node",
    "NodeMemory",
    "OutputSink",
    "Posted",
    "Sampled",
    "WorkerExited",
    "WorkerGroup",
    "WorkerInfo",
    "WorkerMessage",
    "WorkerPreempted",
]


OUT_OF_MEMORY = "the kernel killed it because memory ran out"
"""The ``detail`` of a worker that the kernel killed because memory ran out."""


@dataclass(frozen=True)
class GroupSpec:
    """What to start: the same function on every worker, with the same payload."""

    size: int
    entry: str
    """``"module:function"``; called in each worker as ``function(channel)``."""
    payload: bytes
    """Pickled by the caller; the worker's first ``channel.receive()`` returns the bytes."""
    preload: tuple[str, ...] = ()
    """Modules to import before workers start, to save time; a failed import is not an error."""
    preload_later: tuple[str, ...] = ()
    """Modules to import once the first workers run and nothing else is to be done."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the driver's environment before any of the user's modules is imported."""
    cpus_per_worker: float | None = None
    gpus_per_worker: float = 0
    """An integer, or a part of one GPU, which the worker shares with others."""
    gpus: tuple[str, ...] | None = None
    """The devices of these workers, worker by worker; None: all visible ones, divided."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """What else each worker reserves on its node, by the cluster's own names."""
    placement_strategy: str = "PACK"
    """How workers are spread over nodes: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD."""
    label_selectors: tuple[Mapping[str, str], ...] = ()
    """The labels that nodes must have: none, one for all workers, or one for each."""
    title: str = "lockstep"
    """What the workers' processes are called, followed by their rank."""


class Node(NamedTuple):
    """A machine of a cluster, as the engine knows it."""

    id: str
    address: str
    """Where the other nodes reach it."""


class MemoryPlace(NamedTuple):
    """Memory that a process of a node has open (``state.memory``)."""

    pid: int
    descriptor: int
    name: str
    size: int


class Holder(NamedTuple):
    """A snapshot in the memory of a node's agent, and where to read it."""

    key: int
    """The snapshot's number; each copy has one of its own."""
    node: str
    """The node's id."""
    address: tuple[str, int]
    secret: bytes
    place: MemoryPlace

    def __repr__(self) -> str:
        return f"Holder({self.key}, {self.node!r})"


class NodeMemory(ABC):
    """The stores of a cluster's nodes, for a driver. No method waits; any thread may call them."""

    @abstractmethod
    def keep(self, node: str, place: MemoryPlace) -> Future[Holder]:
        """Let the node's agent keep a worker's memory. An EngineError: it cannot."""

    @abstractmethod
    def copy(self, holder: Holder, sums: tuple[int, ...]) -> Future[Holder]:
        """Copy a snapshot to another node, which checks it. An EngineError: there is none."""

    @abstractmethod
    def drop(self, holders: Iterable[Holder]) -> None:
        """These are not needed any more."""

    @abstractmethod
    def is_alive(self, holder: Holder) -> bool:
        """Whether the agent that has it still runs, as far as is known."""


class WorkerInfo(NamedTuple):
    """Where one worker runs, as the worker reports when it starts."""

    rank: int
    pid: int
    hostname: str
    node_ip: str
    started: int = 0
    """When the process started, in clock ticks since the machine did; 0 if that is not known."""
    node_id: str = ""
    """The node's name in its cluster; empty where there is none."""


class WorkerMessage(NamedTuple):
    """A worker sent ``message`` (or, as :class:`Posted`, a batch of small ones)."""

    rank: int
    message: Any


class WorkerExited(NamedTuple):
    """A worker's process is gone. The last event of its rank, exactly one for each rank."""

    rank: int
    exitcode: int | None
    """The exit code, or minus the signal number; None when it cannot be known."""
    detail: str = ""
    """What else the engine knows about the end, as text. ``OUT_OF_MEMORY`` comes first in it."""


class WorkerPreempted(NamedTuple):
    """A worker got a notice to end soon. The worker continues until it is stopped."""

    rank: int
    deadline: float | None = None
    """When its machine goes, in seconds since the epoch; None: that was not said."""


class EngineNotice(NamedTuple):
    """What the user should know now, such as what the group waits for. Changes nothing."""

    text: str


GpuUsage = tuple[int | None, int | None, int | None]
"""Percent busy, bytes used, bytes; None: the GPU does not tell."""


class Sampled(NamedTuple):
    """What the workers on one machine used at one moment."""

    hostname: str
    ranks: tuple[int, ...]
    """Those whose process was there."""
    cpu: tuple[float, ...]
    """Seconds of CPU since the process started, for each of these ranks."""
    memory: tuple[int, ...]
    """Bytes in memory, for each of these ranks."""
    gpus: tuple[GpuUsage, ...] = ()
    """Of the machine, by ``nvidia-smi``'s index."""


EngineEvent = WorkerMessage | WorkerExited | WorkerPreempted | EngineNotice | Sampled


class Posted(NamedTuple):
    """A batch of items that a worker passed to ``Channel.post``, in order."""

    items: list[Any]


class Channel(ABC):
    """A worker's end of the line to its driver.

    ``send`` and ``post`` may be called from any thread; ``receive`` from one thread at a time.
    When the driver is gone, the worker's process group is killed, whatever it is doing.
    """

    rank: int
    node: Node | None = None
    """Where this worker runs; None: the engine has a single machine, or does not know."""

    @abstractmethod
    def send(self, message: Any) -> None:
        """Send one message, after everything that was posted before."""

    @abstractmethod
    def post(self, item: Any) -> None:
        """Deliver soon, in a batch with other items. Never waits."""

    @abstractmethod
    def receive(self) -> Any:
        """Wait for the driver's next message."""

    def interrupts_end_it(self) -> AbstractContextManager[None]:
        """Inside this context an interrupt may end the worker at once, without any cleanup."""
        return nullcontext()


class WorkerGroup(ABC):
    """Workers that were started together. All methods are called on the loop's thread.

    No method waits: the effects arrive as events. After the last ``WorkerExited`` only ``close``
    may be called.
    """

    @abstractmethod
    def send(self, rank: int, message: Any) -> None:
        """Queue a message for a worker; dropped if that worker is gone."""

    @abstractmethod
    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every worker's main thread, as Ctrl-C would."""

    @abstractmethod
    def dump_stacks(self, rank: int) -> None:
        """Make a worker write the stacks of its Python threads to its output, whatever it is doing.

        Does nothing if the worker runs in this process.
        """

    @abstractmethod
    def sample(self) -> None:
        """Emit, now or soon, what the workers use that run by now: one event for each machine."""

    def problem(self, rank: int) -> str:
        """Why a worker does not answer, in a few words, if the engine can see it; else empty."""
        return ""

    @property
    def waits_for_room(self) -> bool:
        """The workers are not started yet because others have what they need; that is no hang."""
        return False

    @abstractmethod
    def kill(self) -> None:
        """End every worker now, with all processes it has started."""

    @abstractmethod
    def abandon(self) -> None:
        """Kill the remaining workers and report their ends now, before they are known.

        Does nothing if the worker runs in this process.
        """

    @abstractmethod
    def close(self) -> None:
        """Kill the remaining workers and release every file, socket and thread. Idempotent."""


class OutputSink(Protocol):
    """Receives the output of workers. Called from one thread of the engine, never concurrently."""

    def write(self, rank: int, data: bytes) -> None:
        """Some bytes of a worker's stdout and stderr, in order."""

    def tick(self) -> float | None:
        """Called after writes and when due; returns the seconds until it is due, None for never."""

    def close(self) -> None:
        """Called once, after all output."""


class Engine(ABC):
    """Where processes live. One instance serves many groups, also at the same time."""

    name: str
    """For messages only. Callers decide by the properties below, never by the name."""
    single_machine: bool
    """Every worker runs on this machine, so workers can reach each other over loopback."""
    in_this_process: bool
    """The one worker runs on the driver's own thread. Ctrl-C then reaches the worker itself, its
    output is on the terminal already, and a debugger stops the driver as well."""
    cluster: str = ""
    """Where other processes reach the cluster of this engine; empty where there is none."""
    node_memory: NodeMemory | None = None
    """What keeps memory of workers on other machines; None: the driver can open their memory."""

    @abstractmethod
    def check(self, spec: GroupSpec) -> list[str]:
        """Raise InsufficientResourcesError if ``spec`` can never run here; else return warnings."""

    @abstractmethod
    def capacity(self, spec: GroupSpec) -> int:
        """How many workers like ``spec``'s fit, the workers of its own group included."""

    @abstractmethod
    def resources(self) -> tuple[float, tuple[str, ...]]:
        """The CPUs and the GPUs that trials may share, in all."""

    @abstractmethod
    def watch_capacity(self, loop: EventLoop, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` on the loop whenever the capacity may have changed.

        Returns a function that ends this.
        """

    def prepare(self, spec: GroupSpec) -> None:  # noqa: B027
        """A group like this will start soon: begin with what it needs. Neither waits nor raises."""

    @abstractmethod
    def start(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
    ) -> WorkerGroup:
        """Start a group and return at once. ``emit`` is only ever called on ``loop``'s thread.

        Raises:
            EngineError: the processes could not be started.
        """

    @abstractmethod
    def close(self) -> None:
        """End everything this engine keeps warm. Idempotent."""
