"""The time spent waiting for data."""

from __future__ import annotations

from typing import Any

from lockstep.data import Dataset, DataShard
from tests.data.datasets import blocks


def shard(dataset: Dataset, size: int = 1, rank: int = 0, **options: Any) -> DataShard:
    return dataset.prepare(size, **options).shard(rank)


def test_waiting_is_measured() -> None:
    import time

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
