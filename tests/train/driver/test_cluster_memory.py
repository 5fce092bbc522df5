"""ClusterMemory: which snapshots the nodes of a cluster keep, and from where they are read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.checkpoint import Checkpoint
from lockstep.engine.base import Holder, MemoryPlace, Node, NodeMemory
from lockstep.engine.loop import EventLoop
from lockstep.engine.snapshots import SnapshotStore
from lockstep.errors import CheckpointError, EngineError
from lockstep.state.memory import checksum, create_memory
from lockstep.storage import open_storage
from lockstep.train.context import TrainContext
from lockstep.train.driver.cluster_memory import ClusterMemory
from lockstep.train.protocol import Answer, Committed, MemoryPart
from lockstep.train.worker.session import Session, _fetched, _open_parts

SIZE = 4096
SECRET = b"s" * 32


class Nodes(NodeMemory):
    """Two nodes whose stores are in this process; a test kills them by their names."""

    def __init__(self, loop: EventLoop) -> None:
        self.stores = {"a": SnapshotStore(loop), "b": SnapshotStore(loop)}
        self.dropped: list[int] = []
        self._key = 0

    def keep(self, node: str, place: MemoryPlace) -> Future[Holder]:
        return self._do(node, lambda store, at: store.keep(self._key, place, at, SECRET))

    def copy(self, holder: Holder, sums: tuple[int, ...]) -> Future[Holder]:
        other = "b" if holder.node == "a" else "a"
        return self._do(other, lambda store, at: store.fetch(self._key, holder, sums, at, SECRET))

    def drop(self, holders: Iterable[Holder]) -> None:
        for holder in holders:
            self.dropped.append(holder.key)
            if self.is_alive(holder):
                self.stores[holder.node].drop([holder.key])

    def is_alive(self, holder: Holder) -> bool:
        return holder.node in self.stores

    def kill(self, name: str) -> None:
        self.stores.pop(name).close()

    def _do(self, name: str, call: Callable[[SnapshotStore, Node], Holder]) -> Future[Holder]:
        self._key += 1
        done: Future[Holder] = Future()
        try:
            if name not in self.stores:
                raise EngineError("the cluster has no other node")
            done.set_result(call(self.stores[name], Node(name, "127.0.0.1")))
        except EngineError as error:
            done.set_exception(error)
        return done


class Driver:
    """A driver's memory of two ranks, one a node."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.loop = EventLoop()
        self.warned: list[str] = []
        self.sealed: list[int] = []
        self.memory = ClusterMemory(nodes, self.loop, 1, self.warned.append)
        self.parts: list[MemoryPart] = []
        for rank in (0, 1):
            descriptor, name = create_memory(SIZE)
            os.pwrite(descriptor, f"rank {rank}".encode(), 0)
            part = MemoryPart(rank, b"{}", os.getpid(), descriptor, name, SIZE, ())
            self.parts.append(part)

    def settle(self) -> None:
        """Do what has been queued, and what that queues."""
        for _ in range(4):
            self.loop.call_soon(lambda: None)
            self.loop.run_once()

    def save(self, name: str, number: int) -> None:
        self.memory.expect(name, number)
        for part, node in zip(self.parts, ("a", "b"), strict=True):
            self.memory.add(name, part, node)
        for part in self.parts:
            sums = checksum(os.pread(part.descriptor, SIZE, 0), SIZE)
            self.memory.seal(name, part.rank, sums, partial(self.sealed.append, part.rank))
        self.settle()

    def close(self) -> None:
        self.memory.close()
        self.loop.close()
        for part in self.parts:
            os.close(part.descriptor)


@pytest.fixture
def driver() -> Iterator[Driver]:
    loop, over = EventLoop(), threading.Event()
    thread = threading.Thread(target=lambda: loop.run_until(over.is_set))
    thread.start()
    nodes = Nodes(loop)
    made = Driver(nodes)
    yield made
    made.close()
    for name in list(nodes.stores):
        nodes.kill(name)
    loop.call_soon(over.set)
    thread.join()
    loop.close()


def read(part: MemoryPart, node: str) -> bytes:
    """As a worker on this node does."""
    ((_, descriptor),) = _open_parts([part], node)
    descriptor = _fetched(part, descriptor)
    try:
        return os.pread(descriptor, 6, 0)
    finally:
        os.close(descriptor)


def test_a_lost_node_is_read_from_its_peer(driver: Driver) -> None:
    driver.save("one", 1)
    assert sorted(driver.sealed) == [0, 1]
    both = driver.memory.parts("one", ["a", "b"])
    assert [part.holder.node for part in both["a"] if part.holder] == ["a", "a"]
    assert [part.holder.node for part in both["b"] if part.holder] == ["b", "b"]
    driver.nodes.kill("b")
    left = driver.memory.parts("one", ["a", "c"])
    assert [read(part, "a") for part in left["a"]] == [b"rank 0", b"rank 1"]
    assert [read(part, "c") for part in left["c"]] == [b"rank 0", b"rank 1"]  # over the network


def test_without_a_peer_a_lost_node_is_not_replaced(driver: Driver, tmp_path: Path) -> None:
    driver.memory._peer_copies = 0
    driver.save("one", 1)
    driver.nodes.kill("b")
    assert driver.memory.parts("one", ["a"]) == {}
    storage = open_storage(str(tmp_path))
    with pytest.raises(CheckpointError, match="no node has rank 1's part of one"):
        driver.memory.write("one", storage, "one")


def test_a_cluster_of_one_node_warns_and_works(driver: Driver) -> None:
    driver.nodes.kill("b")
    os.close(driver.parts.pop().descriptor)
    driver.memory.expect("one", 1)
    driver.memory.add("one", driver.parts[0], "a")
    sums = checksum(os.pread(driver.parts[0].descriptor, SIZE, 0), SIZE)
    driver.memory.seal("one", 0, sums, lambda: driver.sealed.append(0))
    driver.settle()
    assert driver.sealed == [0]
    assert driver.warned == ["the cluster has no other node"]
    (part,) = driver.memory.parts("one", ["a"])["a"]
    assert read(part, "a") == b"rank 0"


def test_the_driver_writes_what_is_left(driver: Driver, tmp_path: Path) -> None:
    driver.save("one", 1)
    driver.nodes.kill("a")
    storage = open_storage(str(tmp_path))
    driver.memory.write("one", storage, "one")
    for rank in (0, 1):
        written = tmp_path / "one" / "train_state" / f"rank_{rank}.safetensors"
        assert written.read_bytes().startswith(f"rank {rank}".encode())
        assert written.stat().st_size == SIZE
        assert (written.parent / f"rank_{rank}.json").read_bytes() == b"{}"


def test_what_has_changed_since_it_was_sealed_is_not_written(
    driver: Driver, tmp_path: Path
) -> None:
    driver.memory._peer_copies = 0
    driver.save("one", 1)
    os.pwrite(driver.parts[0].descriptor, b"X", 9)
    with pytest.raises(CheckpointError, match="rank 0's part"):
        driver.memory.write("one", open_storage(str(tmp_path)), "one")


def test_the_next_snapshot_takes_the_place_of_the_last(driver: Driver) -> None:
    driver.save("one", 1)
    driver.save("two", 2)
    assert sorted(driver.nodes.dropped) == [1, 2, 3, 4]
    assert driver.memory.parts("one", ["a"]) == {}
    driver.memory.drop_until(2)
    assert sorted(driver.nodes.dropped) == list(range(1, 9))
    # What arrives after that is dropped at once.
    driver.memory.expect("three", 3)
    driver.memory.add("three", driver.parts[0], "a")
    driver.memory.drop("three")
    driver.settle()
    assert 9 in driver.nodes.dropped
    driver.memory.add("three", driver.parts[0], "a")
    driver.memory.seal("three", 0, (), lambda: pytest.fail("it is gone"))


def test_what_other_nodes_have_dropped_is_on_storage(driver: Driver, tmp_path: Path) -> None:
    driver.save("one", 1)
    parts = driver.memory.parts("one", ["a", "c"])["c"]
    channel: Any = SimpleNamespace(node=Node("c", "127.0.0.1"))
    storage = open_storage(str(tmp_path))
    session = Session(channel, TrainContext(), storage, None, None, [], memory=parts)
    driver.memory.drop_until(1)
    driver.settle()
    # Not an older checkpoint, before the driver says that this one is on storage.
    with pytest.raises(CheckpointError, match="the next attempt starts again"):
        session.start_state()
    session._learn(Answer(False, committed=[Committed(1, Checkpoint(tmp_path), {})]))
    assert session.start_state() == Checkpoint(tmp_path)
