"""Snapshots that a node keeps and that others read: complete and unchanged, or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from lockstep.engine.base import Holder, MemoryPlace, Node
from lockstep.engine.loop import EventLoop
from lockstep.engine.snapshots import SnapshotStore, fetch_snapshot, read_snapshot
from lockstep.errors import EngineError
from lockstep.state.memory import checksum, create_memory

SIZE = (1 << 20) + 5
SECRET = b"s" * 32
HERE = Node("here", "127.0.0.1")


@pytest.fixture
def new_store() -> Iterator[Callable[[], SnapshotStore]]:
    """Creates stores, all on one loop in a thread of its own, as an agent's."""
    loop, over = EventLoop(), threading.Event()
    thread = threading.Thread(target=lambda: loop.run_until(over.is_set))
    thread.start()
    stores: list[SnapshotStore] = []

    def create() -> SnapshotStore:
        stores.append(SnapshotStore(loop))
        return stores[-1]

    yield create
    for store in stores:
        store.close()
    loop.call_soon(over.set)
    thread.join()
    loop.close()


@pytest.fixture
def memory() -> Iterator[MemoryPlace]:
    """A worker's memory, with some content."""
    descriptor, name = create_memory(SIZE)
    os.pwrite(descriptor, bytes(range(250)) * (SIZE // 250), 0)
    yield MemoryPlace(os.getpid(), descriptor, name, SIZE)
    os.close(descriptor)


def content(place: MemoryPlace) -> bytes:
    return os.pread(place.descriptor, place.size, 0)


def test_what_a_node_keeps_is_read_by_others(
    new_store: Callable[[], SnapshotStore], memory: MemoryPlace
) -> None:
    holder = new_store().keep(7, memory, HERE, SECRET)
    assert b"".join(read_snapshot(holder)) == content(memory)
    descriptor, _ = fetch_snapshot(holder)
    assert os.pread(descriptor, SIZE, 0) == content(memory)
    os.close(descriptor)
    assert "sss" not in repr(holder)


def test_a_copy_outlives_the_first_holder(
    new_store: Callable[[], SnapshotStore], memory: MemoryPlace
) -> None:
    first, second = new_store(), new_store()
    kept = first.keep(1, memory, HERE, SECRET)
    copy = second.fetch(2, kept, checksum(content(memory), SIZE), Node("b", "127.0.0.1"), SECRET)
    first.drop([1])
    assert b"".join(read_snapshot(copy)) == content(memory)
    with pytest.raises(EngineError, match="it ended early"):
        fetch_snapshot(kept)
    second.drop([2, 3])
    with pytest.raises(EngineError, match="it ended early"):
        list(read_snapshot(copy))


def test_what_has_changed_since_it_was_sealed_is_not_kept(
    new_store: Callable[[], SnapshotStore], memory: MemoryPlace
) -> None:
    first, second = new_store(), new_store()
    kept = first.keep(1, memory, HERE, SECRET)
    sums = checksum(content(memory), SIZE)
    os.pwrite(memory.descriptor, b"x", 300)  # the next snapshot begins
    with pytest.raises(EngineError, match="has changed while it was copied"):
        second.fetch(2, kept, sums, HERE, SECRET)


def test_a_worker_that_is_gone_and_a_node_without_room(
    new_store: Callable[[], SnapshotStore],
    memory: MemoryPlace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = new_store()
    with pytest.raises(EngineError, match="is gone"):
        store.keep(1, memory._replace(name="another"), HERE, SECRET)
    kept = store.keep(1, memory, HERE, SECRET)

    def full(*args: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(EngineError, match="no room for a copy: No space left"):
        new_store().fetch(2, kept, (), HERE, SECRET)


def test_nobody_else_can_read_it(
    new_store: Callable[[], SnapshotStore], memory: MemoryPlace
) -> None:
    holder = new_store().keep(1, memory, HERE, SECRET)
    stranger: Holder = holder._replace(secret=b"x" * 32)
    with pytest.raises(EngineError):
        fetch_snapshot(stranger)
