"""What a rank starts from: a state in memory, checked before it is used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep import train
from lockstep.errors import CheckpointError
from lockstep.state.files import StoredState
from lockstep.storage import open_storage
from lockstep.train.context import TrainContext
from lockstep.train.protocol import MemoryPart
from lockstep.train.worker.session import Session
from lockstep.train.worker.snapshot import SnapshotMemory


@pytest.fixture
def parts() -> Iterator[list[MemoryPart]]:
    """The states of two ranks, each of which has an array of its own."""
    memories = [SnapshotMemory(), SnapshotMemory()]
    found = []
    for rank, memory in enumerate(memories):
        state = train.State(values=np.full(100, float(rank)), rng=False)
        taken = memory.take(state.capture(), "one", rank, (0, 1), {})
        assert taken.place is not None
        size, sums = taken.layout.size, taken.checksum()
        found.append(MemoryPart(rank, taken.structure, os.getpid(), *taken.place, size, sums))
    yield found
    for memory in memories:
        memory.close()


def start_state(rank: int, parts: list[MemoryPart], place: Path) -> StoredState:
    channel: Any = SimpleNamespace(node=None)
    context = TrainContext(world_rank=rank, world_size=2, local_world_size=2)
    session = Session(channel, context, open_storage(str(place)), None, None, [], memory=parts)
    try:
        found = session.start_state()
        assert isinstance(found, StoredState)
        found.entries(rank)
        return found
    finally:
        session._drop_start()


def test_each_rank_gets_its_own(parts: list[MemoryPart], tmp_path: Path) -> None:
    for rank in (0, 1):
        assert start_state(rank, parts, tmp_path).entries(rank)["values"][0] == rank


def test_a_part_that_has_changed_is_never_used(parts: list[MemoryPart], tmp_path: Path) -> None:
    os.pwrite(parts[1].descriptor, b"x", parts[1].size - 3)
    with pytest.raises(CheckpointError, match="rank 1's state in memory has another checksum"):
        start_state(1, parts, tmp_path)
    start_state(0, parts, tmp_path)  # which reads nothing of it
    mixed = [parts[0], parts[1]._replace(structure=parts[1].structure.replace(b"one", b"two"))]
    with pytest.raises(CheckpointError, match="mixes files of different snapshots"):
        start_state(0, mixed, tmp_path)


def test_time_in_collectives_is_counted_once(tmp_path: Path) -> None:
    channel: Any = SimpleNamespace(node=None)
    session = Session(channel, TrainContext(), open_storage(str(tmp_path)), None, None, [])
    seen: list[float] = []
    session.before_reports.append(seen.append)
    session.start_clock()
    session.waited("communication", 3600.0)  # longer than anything here takes
    busy, waits = session.take_times()
    assert seen == [0.0]
    session.start_clock()
    busy, waits = session.take_times()
    assert seen[1] == busy
    assert waits is None
