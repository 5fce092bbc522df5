"""StateMemory: which snapshots the driver keeps, and for how long."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import CheckpointError, StorageError
from lockstep.state.memory import checksum, create_memory
from lockstep.storage import local, open_storage
from lockstep.train.driver.memory import StateMemory
from lockstep.train.protocol import MemoryPart

SIZE = 4096


@pytest.fixture
def part() -> Iterator[MemoryPart]:
    descriptor, name = create_memory(SIZE)
    os.pwrite(descriptor, b"state", 0)
    yield MemoryPart(0, b"{}", os.getpid(), descriptor, name, SIZE, ())
    os.close(descriptor)


@pytest.fixture
def memory() -> Iterator[StateMemory]:
    made = StateMemory()
    yield made
    made.close()


def opened() -> int:
    """How many of the descriptors of this process are open on snapshots."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum("lockstep-state" in os.readlink(link) for link in links if link.is_symlink())


def test_the_next_snapshot_takes_the_place_of_the_last(
    memory: StateMemory, part: MemoryPart
) -> None:
    memory.expect("one", 1)
    memory.add("one", part)
    assert opened() == 2
    memory.expect("two", 2)
    assert opened() == 1
    assert memory.parts("one", [""]) == {"": ()}
    memory.add("one", part)  # late
    assert opened() == 1


def test_a_snapshot_that_will_not_be_used_is_released(
    memory: StateMemory, part: MemoryPart
) -> None:
    memory.expect("one", 1)
    memory.add("one", part)
    memory.drop("another")
    assert opened() == 2
    memory.drop("one")
    assert opened() == 1
    memory.seal("one", 0, (), lambda: pytest.fail("it is gone"))


def test_what_has_changed_since_it_was_sealed_is_not_written(
    memory: StateMemory, part: MemoryPart, tmp_path: Path
) -> None:
    memory.expect("one", 1)
    memory.add("one", part)
    sums = checksum(os.pread(part.descriptor, SIZE, 0), SIZE)
    sealed = []
    memory.seal("one", 0, sums, lambda: sealed.append("one"))
    assert sealed == ["one"]
    storage = open_storage(str(tmp_path))
    memory.write("one", storage, storage.stage("one"))
    (written,) = tmp_path.rglob("rank_0.safetensors")
    assert written.read_bytes().startswith(b"state")
    os.pwrite(part.descriptor, b"STATE", 0)
    with pytest.raises(CheckpointError, match="its checksum differs"):
        memory.write("one", storage, storage.stage("one"))


def test_storage_that_fails_in_the_middle_is_named(
    memory: StateMemory, part: MemoryPart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The piece that could not be written must not keep the memory from being closed."""
    memory.expect("one", 1)
    memory.add("one", part)
    memory.seal("one", 0, checksum(os.pread(part.descriptor, SIZE, 0), SIZE), lambda: None)

    def full(path: str, chunks: Iterable[memoryview], *rest: Any) -> None:
        piece = next(iter(chunks))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{path}, {len(piece)} bytes")

    monkeypatch.setattr(local, "_write_file", full)
    storage = open_storage(str(tmp_path))
    with pytest.raises(StorageError, match="No space left on device"):
        memory.write("one", storage, storage.stage("one"))
