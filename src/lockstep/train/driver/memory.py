"""The snapshots of states in memory, which the driver keeps when the workers that took them die.

A worker's snapshot lies in anonymous memory. The driver opens that memory when it hears of it,
so the memory exists until the driver closes it: when the checkpoint is on storage, when the next
snapshot takes its place, or when the run is over.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing, suppress
from typing import Generic, TypeVar

from lockstep.errors import CheckpointError
from lockstep.run_layout import state_data, state_index
from lockstep.state.memory import CHUNK, checksum, open_memory
from lockstep.storage import Storage
from lockstep.train.protocol import MemoryPart

__all__ = ["SnapshotKeeper", "StateMemory"]

Part = TypeVar("Part")


class SnapshotKeeper(ABC, Generic[Part]):
    """The snapshots of a run that are not on storage yet. Used from the loop's thread.

    A save is announced with ``expect``. Each rank's part of it is added, and sealed when every byte
    is there. ``write`` may run in another thread, for a snapshot that is complete.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._parts: dict[str, dict[int, Part]] = {}
        """The parts of each snapshot, by its name and by rank."""

    def expect(self, name: str, number: int) -> None:
        """A save with this name and number begins: the ranks write over what they had."""
        self.close()
        self._numbers[name], self._parts[name] = number, {}

    @abstractmethod
    def add(self, name: str, part: MemoryPart, node: str) -> None:
        """Keep the memory of a rank, which is on this node."""

    @abstractmethod
    def seal(self, name: str, rank: int, sums: tuple[int, ...], then: Callable[[], None]) -> None:
        """A rank's part is complete; calls ``then`` when the part outlives the rank."""

    @abstractmethod
    def parts(self, name: str, nodes: Iterable[str]) -> dict[str, tuple[MemoryPart, ...]]:
        """What ``state.restore()`` of the next attempt reads, by node; empty: nothing for it."""

    @abstractmethod
    def write(self, name: str, storage: Storage, directory: str) -> None:
        """Write a snapshot's files to ``directory``, from where they are published.

        Raises:
            CheckpointError: the memory is gone, or not what the ranks have sealed.
            StorageError: storage failed.
        """

    @abstractmethod
    def _release(self, part: Part) -> None:
        """A part will not be used."""

    def drop_until(self, number: int) -> None:
        """A checkpoint is on storage: it, and what is older, is not needed in memory."""
        for name in [name for name, old in self._numbers.items() if old <= number]:
            self.drop(name)

    def drop(self, name: str) -> None:
        """A snapshot will not be used."""
        self._numbers.pop(name, None)
        for part in self._parts.pop(name, {}).values():
            self._release(part)

    def close(self) -> None:
        """Release everything."""
        for name in list(self._parts):
            self.drop(name)


class StateMemory(SnapshotKeeper[MemoryPart]):
    """The snapshots of workers on this machine: the driver opens their memory itself.

    A part without a checksum may not be complete.
    """

    def take(self, name: str, number: int, parts: Iterable[MemoryPart]) -> None:
        """Keep a complete snapshot, whose memory this process has opened already."""
        self._numbers[name], self._parts[name] = number, {part.rank: part for part in parts}

    def add(self, name: str, part: MemoryPart, node: str = "") -> None:
        """Open a rank's memory. Where that is impossible, it is not kept."""
        if name not in self._parts:
            return
        with suppress(OSError):
            opened = open_memory(part.pid, part.descriptor, part.name, part.size)
            own = part._replace(pid=os.getpid(), descriptor=opened)
            self._parts[name][part.rank] = own

    def seal(self, name: str, rank: int, sums: tuple[int, ...], then: Callable[[], None]) -> None:
        """A rank's part is complete; calls ``then`` if the driver has it."""
        parts = self._parts.get(name, {})
        if rank in parts:
            parts[rank] = parts[rank]._replace(checksum=sums)
            then()

    def parts(self, name: str, nodes: Iterable[str]) -> dict[str, tuple[MemoryPart, ...]]:
        """The same for every node: memory that only processes of this machine can open."""
        parts = tuple(self._parts.get(name, {}).values())
        if any(part.file is not None for part in parts):
            return {}
        return dict.fromkeys(nodes, parts)

    def write(self, name: str, storage: Storage, directory: str) -> None:
        """Write the files. CheckpointError: the memory is not what the ranks have sealed."""
        with ExitStack() as mapped:
            # All of them first: storage may not answer for long, and the descriptors be closed.
            memories = [
                (part, mapped.enter_context(mmap.mmap(part.descriptor, 0, prot=mmap.PROT_READ)))
                for part in self._parts[name].values()
            ]
            for part, memory in memories:
                if checksum(memory, part.size) != part.checksum:
                    raise CheckpointError(
                        f"the copy of rank {part.rank}'s state in memory is not what the rank has "
                        "taken: its checksum differs."
                    )
                # Closed, so that the memory can be closed, too, where storage failed in the middle.
                with memoryview(memory) as view, closing(_chunks(view, part.size)) as chunks:
                    data = part.file or state_data(part.rank)
                    storage.put_stream(f"{directory}/{data}", chunks)
                if part.file is None:
                    storage.put_bytes(f"{directory}/{state_index(part.rank)}", part.structure)

    def _release(self, part: MemoryPart) -> None:
        os.close(part.descriptor)


def _chunks(memory: memoryview, size: int) -> Generator[memoryview, None, None]:
    for start in range(0, size, CHUNK):
        # Released, so that the memory can be closed.
        with memory[start : min(start + CHUNK, size)] as chunk:
            yield chunk
