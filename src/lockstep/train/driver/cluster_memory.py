"""The snapshots of states on the nodes of a cluster: kept by the nodes' agents, and by a peer's.

What ``memory`` is on one machine. The driver opens nothing itself: the agent of a rank's node keeps
the rank's memory, and the agent of another node gets a copy once the memory is sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

from lockstep.engine.base import Holder, MemoryPlace, NodeMemory
from lockstep.engine.loop import EventLoop
from lockstep.engine.snapshots import read_snapshot
from lockstep.errors import CheckpointError, EngineError
from lockstep.run_layout import state_data, state_index
from lockstep.state.memory import checksum
from lockstep.storage import Storage
from lockstep.train.driver.memory import SnapshotKeeper
from lockstep.train.protocol import MemoryPart

__all__ = ["ClusterMemory"]


class _Kept:
    """A rank's part of a snapshot."""

    def __init__(self, part: MemoryPart) -> None:
        self.part = part
        self.holders: list[Holder] = []
        self.sealed: Callable[[], None] | None = None
        self.dropped = False


class ClusterMemory(SnapshotKeeper[_Kept]):
    """The snapshots of workers on a cluster, which the nodes keep.

    Args:
        memory: what the nodes keep.
        loop: where all of this happens.
        peer_copies: how many other nodes get a copy, 0 or 1.
        warn: called with why there is no copy.
    """

    def __init__(
        self,
        memory: NodeMemory,
        loop: EventLoop,
        peer_copies: int,
        warn: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._memory = memory
        self._loop = loop
        self._peer_copies = peer_copies
        self._warn = warn

    def add(self, name: str, part: MemoryPart, node: str) -> None:
        """Let the agent of a rank's node keep the rank's memory."""
        if name not in self._parts:
            return
        kept = self._parts[name][part.rank] = _Kept(part)
        place = MemoryPlace(part.pid, part.descriptor, part.name, part.size)
        self._follow(self._memory.keep(node, place), kept, lambda: self._settle(kept))

    def seal(self, name: str, rank: int, sums: tuple[int, ...], then: Callable[[], None]) -> None:
        """A rank's snapshot is complete; calls ``then`` when an agent has it."""
        kept = self._parts.get(name, {}).get(rank)
        if kept is None:
            return
        kept.part = kept.part._replace(checksum=sums)
        kept.sealed = then
        if kept.holders:
            self._settle(kept)

    def parts(self, name: str, nodes: Iterable[str]) -> dict[str, tuple[MemoryPart, ...]]:
        """The same for every node, from its own memory where that has a part."""
        kept = list(self._parts.get(name, {}).values())
        alive = [[one for one in part.holders if self._memory.is_alive(one)] for part in kept]
        if not kept or not all(alive) or any(part.part.file is not None for part in kept):
            return {}
        return {
            node: tuple(
                _at(part.part, next((one for one in holders if one.node == node), holders[0]))
                for part, holders in zip(kept, alive, strict=True)
            )
            for node in nodes
        }

    def write(self, name: str, storage: Storage, directory: str) -> None:
        """Write the files. CheckpointError: no node has what the ranks have sealed."""
        for kept in list(self._parts[name].values()):
            part = kept.part
            if not any(self._written(part, one, storage, directory) for one in list(kept.holders)):
                raise CheckpointError(
                    f"no node has rank {part.rank}'s part of {name} any more: the newest "
                    "checkpoint on storage is used."
                )
            if part.file is None:
                storage.put_bytes(f"{directory}/{state_index(part.rank)}", part.structure)

    def _release(self, part: _Kept) -> None:
        part.dropped = True
        self._memory.drop(part.holders)

    def _follow(
        self, future: Future[Holder], kept: _Kept, then: Callable[[], None], *, copy: bool = False
    ) -> None:
        def arrived() -> None:
            error = future.exception()
            if error is not None:
                if copy and not kept.dropped:
                    self._warn(str(error))
            elif kept.dropped:
                self._memory.drop([future.result()])
            else:
                kept.holders.append(future.result())
                then()

        def done(_: Future[Holder]) -> None:
            if kept.dropped:  # the run may be over, and its loop closed
                arrived()
            else:
                self._loop.call_soon(arrived)

        future.add_done_callback(done)

    def _settle(self, kept: _Kept) -> None:
        """A part is sealed, and its node keeps it: now it outlives its rank."""
        if kept.sealed is None:
            return
        kept.sealed()
        if self._peer_copies:
            copy = self._memory.copy(kept.holders[0], kept.part.checksum)
            self._follow(copy, kept, lambda: None, copy=True)

    def _written(self, part: MemoryPart, holder: Holder, storage: Storage, directory: str) -> bool:
        """Write one file from what a node has; False if the node does not have it."""
        if not self._memory.is_alive(holder):
            return False
        sums: list[int] = []

        def chunks() -> Iterator[memoryview]:
            for chunk in read_snapshot(holder):
                sums.extend(checksum(chunk, len(chunk)))
                yield chunk

        try:
            storage.put_stream(f"{directory}/{part.file or state_data(part.rank)}", chunks())
        except EngineError:
            return False
        return tuple(sums) == part.checksum


def _at(part: MemoryPart, holder: Holder) -> MemoryPart:
    pid, descriptor, name, _ = holder.place
    return part._replace(pid=pid, descriptor=descriptor, name=name, holder=holder)
