"""The snapshots of states in memory, which the driver keeps when the workers that took them die.

A worker's snapshot lies in anonymous memory. The driver opens that memory when it hears of it,
so the memory exists until the driver closes it: when the checkpoint is on storage, when the next
snapshot takes its place, or when the run is over.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

from lockstep.errors import CheckpointError
from lockstep.run_layout import state_data, state_index
from lockstep.state.memory import CHUNK, checksum, open_memory
from lockstep.storage import Storage
from lockstep.train.protocol import MemoryPart

__all__ = ["StateMemory"]


class _Snapshot(NamedTuple):
    id: int
    parts: dict[int, MemoryPart]
    """Opened by this process; without a checksum they may not be complete."""


class StateMemory:
    """The snapshots of a run that are not on storage yet. Used from the loop's thread.

    ``write`` may run in another thread, for a snapshot that is complete.
    """

    def __init__(self) -> None:
        self._snapshots: dict[str, _Snapshot] = {}

    def expect(self, name: str, number: int) -> None:
        """A save with this name and number begins: the ranks write over what they had."""
        self.close()
        self._snapshots[name] = _Snapshot(number, {})

    def take(self, name: str, number: int, parts: Iterable[MemoryPart]) -> None:
        """Keep a complete snapshot, whose memory this process has opened already."""
        self._snapshots[name] = _Snapshot(number, {part.rank: part for part in parts})

    def add(self, name: str, part: MemoryPart, node: str = "") -> None:
        """Keep a rank's memory. Where it cannot be opened, it is not kept."""
        snapshot = self._snapshots.get(name)
        if snapshot is None:
            return
        with suppress(OSError):
            opened = open_memory(part.pid, part.descriptor, part.name, part.size)
            snapshot.parts[part.rank] = part._replace(pid=os.getpid(), descriptor=opened)

    def seal(self, name: str, rank: int, sums: tuple[int, ...], then: Callable[[], None]) -> None:
        """A rank's snapshot is complete; calls ``then`` if the driver has it."""
        snapshot = self._snapshots.get(name)
        if snapshot is not None and rank in snapshot.parts:
            snapshot.parts[rank] = snapshot.parts[rank]._replace(checksum=sums)
            then()

    def parts(self, name: str, nodes: Iterable[str]) -> dict[str, tuple[MemoryPart, ...]]:
        """What ``state.restore()`` of the next attempt opens, by node; empty: nothing for it."""
        snapshot = self._snapshots.get(name)
        parts = tuple(snapshot.parts.values()) if snapshot else ()
        if any(part.file is not None for part in parts):
            return {}
        return dict.fromkeys(nodes, parts)

    def write(self, name: str, storage: Storage, directory: str) -> None:
        """Write a snapshot's files to ``directory``, from where they are published.

        Raises:
            CheckpointError: the memory is not what the ranks have sealed.
            StorageError: storage failed.
        """
        with ExitStack() as mapped:
            # All of them first: storage may not answer for long, and the descriptors be closed.
            memories = [
                (part, mapped.enter_context(mmap.mmap(part.descriptor, 0, prot=mmap.PROT_READ)))
                for part in self._snapshots[name].parts.values()
            ]
            for part, memory in memories:
                if checksum(memory, part.size) != part.checksum:
                    raise CheckpointError(
                        f"the copy of rank {part.rank}'s state in memory is not what the rank has "
                        "taken: its checksum differs."
                    )
                with memoryview(memory) as view:
                    chunks = _chunks(view, part.size)
                    data = part.file or state_data(part.rank)
                    storage.put_stream(f"{directory}/{data}", chunks)
                if part.file is None:
                    storage.put_bytes(f"{directory}/{state_index(part.rank)}", part.structure)

    def drop_until(self, number: int) -> None:
        """A checkpoint is on storage: it, and what is older, is not needed in memory."""
        for name in [name for name, old in self._snapshots.items() if old.id <= number]:
            self.drop(name)

    def drop(self, name: str) -> None:
        """A snapshot will not be used."""
        snapshot = self._snapshots.pop(name, None)
        for part in snapshot.parts.values() if snapshot else ():
            os.close(part.descriptor)

    def close(self) -> None:
        """Release everything."""
        for name in list(self._snapshots):
            self.drop(name)


def _chunks(memory: memoryview, size: int) -> Iterator[memoryview]:
    for start in range(0, size, CHUNK):
        # Released, so that the memory can be closed.
        with memory[start : min(start + CHUNK, size)] as chunk:
            yield chunk
