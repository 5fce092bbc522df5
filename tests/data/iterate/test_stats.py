"""The time spent waiting for data."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pytest

import lockstep.data
from lockstep.data import Dataset, DataShard
from tests.data.datasets import blocks


def shard(dataset: Dataset, size: int = 1, rank: int = 0, **options: Any) -> DataShard:
    return dataset.prepare(size, **options).shard(rank)


def test_waiting_is_measured() -> None:
    def slowly(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.2)
        return batch

    waiting = shard(blocks(100).map_batches(slowly))
    for _ in waiting.iter_batches(batch_size=25):
        pass
    stats = waiting.stats()
    assert (stats.rows, stats.batches) == (100, 4)
    assert stats.waited_s >= 0.75
    assert stats.wait_share == stats.waited_s / (stats.waited_s + stats.used_s) > 0.5
    assert str(stats).startswith(f"100 rows in 4 batches; waited {stats.waited_s:.3f} s for")
    busy = shard(blocks(100))
    running = iter(busy.iter_batches(batch_size=25))
    next(running)  # what comes before it is waiting, however long a thread takes to begin
    waited = busy.stats().waited_s
    time.sleep(0.2)
    for _ in running:
        time.sleep(0.2)
    assert busy.stats().used_s >= 0.6
    assert busy.stats().waited_s - waited < busy.stats().used_s / 2
    dataset = blocks(10)
    list(dataset.iter_batches())
    assert dataset.stats().rows == 10


def test_nothing_yet() -> None:
    assert blocks(10).stats().wait_share == 0


def work(seconds: float) -> None:
    """Python code that takes this much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


@pytest.mark.parametrize("concurrency", [None, 2])
def test_python_code_beside_the_users_is_counted(concurrency: int | None) -> None:
    def busy(batch: dict[str, Any]) -> dict[str, Any]:
        work(0.02)
        return batch

    dataset = blocks(400, 40).map_batches(busy, batch_size=10, concurrency=concurrency)
    busy_shard = shard(dataset)
    for _ in busy_shard.iter_batches(batch_size=10):
        work(0.02)
    stats = busy_shard.stats()
    # Both need 0.8 s, and one of the two runs at a time.
    assert 0.2 < stats.stood_s < 1.0
    assert stats.lost_s > 0.4  # the share also depends on what else the machine does
    assert f"but stood still for {stats.stood_s:.3f} s of it" in str(stats)
    assert stats.lost_s == stats.waited_s + stats.stood_s


def test_code_that_leaves_the_interpreter_alone_is_not_counted() -> None:
    def asleep(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return batch

    quiet = shard(blocks(200, 20).map_batches(asleep))
    for _ in quiet.iter_batches(batch_size=10):
        work(0.01)
    assert quiet.stats().stood_s < 0.1
    plain = shard(blocks(200, 20))
    for _ in plain.iter_batches(batch_size=10):
        time.sleep(0.001)
    assert plain.stats().stood_s == 0


def test_code_in_processes_is_not_counted() -> None:
    def busy(batch: dict[str, Any]) -> dict[str, Any]:
        work(0.01)
        return batch

    there = shard(blocks(100, 10).map_batches(busy, processes=True, concurrency=1))
    for _ in there.iter_batches(batch_size=10):
        work(0.01)
    assert there.stats().stood_s == 0


def test_statistics_can_be_pickled_and_copied() -> None:
    shard_of_all = shard(lockstep.data.range(10))
    assert pickle.loads(pickle.dumps(shard_of_all.stats())) == ""
    for _ in shard_of_all.iter_batches(batch_size=5):
        pass
    text = shard_of_all.stats()
    for same in (pickle.loads(pickle.dumps(text)), copy.copy(text), copy.deepcopy(text)):
        assert type(same) is type(text)
        assert same == text
        assert (same.rows, same.batches) == (10, 2)
    with pytest.raises(AttributeError):
        text.nothing  # noqa: B018
