"""The thread that prefetches: errors, backpressure, memory, and its end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest

from lockstep.data import Dataset, DataShard
from tests.data.datasets import blocks


def shard(dataset: Dataset, size: int = 1, rank: int = 0, **options: Any) -> DataShard:
    return dataset.prepare(size, **options).shard(rank)


def readers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("lockstep-data")]


def test_an_iteration_left_early_leaves_nothing() -> None:
    for _ in blocks(10_000_000, 100).iter_batches(batch_size=10):
        assert readers()
        break
    assert not readers()
    batches = iter(blocks(10_000_000, 100).iter_torch_batches(batch_size=10, collate_fn=dict))
    next(batches)
    assert len(readers()) == 2
    del batches
    assert not readers()
    again = blocks(100).iter_batches(batch_size=10)
    next(again)
    del again
    assert not readers()


def test_an_exception_in_the_loop_leaves_nothing() -> None:
    def loop() -> None:
        for _ in blocks(10_000_000, 100).iter_batches(batch_size=10):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        loop()
    gc.collect()
    assert not readers()


def test_an_iteration_in_a_cycle_is_collected() -> None:
    class Holder:
        pass

    holder: Any = Holder()
    holder.me = holder
    holder.batches = iter(blocks(10_000_000, 100).iter_batches(batch_size=10))
    next(holder.batches)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
    assert not readers()


def test_a_thread_ends_with_its_iteration() -> None:
    running = iter(blocks(100).iter_batches(batch_size=10))
    assert len(list(running)) == 10
    assert not readers()
    with pytest.raises(StopIteration):
        next(running)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_an_error_comes_where_its_batch_would(prefetch: int) -> None:
    def fail_late(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["id"][0] >= 50:
            raise RuntimeError("late")
        return batch

    running = iter(
        blocks(100).map_batches(fail_late).iter_batches(batch_size=25, prefetch_batches=prefetch)
    )
    assert [next(running)["id"][0] for _ in range(2)] == [0, 25]
    with pytest.raises(RuntimeError, match="late"):
        next(running)
    with pytest.raises(StopIteration):
        next(running)
    assert not readers()


def test_backpressure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader works ahead as far as it may, and no further."""
    monkeypatch.setattr("lockstep.data.iterate.iterator.PREFETCHED_BYTES", 1000)
    read = []
    ahead, further = threading.Event(), threading.Event()

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        read.append(int(batch["id"][0]))
        if len(read) >= 4:
            (ahead if len(read) == 4 else further).set()
        return batch

    # Blocks of 400 bytes: one in use, two lie ready, one waits to be put there.
    running = iter(blocks(5000, 100).map_batches(note).iter_batches(batch_size=50))
    next(running)
    assert ahead.wait(120)
    assert not further.wait(0.3)
    next(running)
    assert further.wait(120)


@pytest.mark.timeout(180)
def test_a_process_ends_while_an_iteration_is_under_way() -> None:
    code = (
        "import lockstep.data\n"
        "kept = iter(lockstep.data.range(10**7).iter_batches(batch_size=10))\n"
        "next(kept)\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=170)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"done\n", b"")


MEMORY = """
import resource, sys
import numpy as np
import lockstep.data

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

# 1.6 GB in all, in blocks of 16 MB
dataset = lockstep.data.range_tensor(200_000, shape=(1000,))
dataset = dataset.map_batches(lambda batch: {"data": batch["data"] * 2, "x": batch["data"][:, 0]})
if "shuffle" in sys.argv:
    dataset = dataset.random_shuffle(seed=1)
shard = dataset.prepare(1, order=sys.argv[1]).shard(0)
before = peak()
rows = 0
for batch in shard.iter_batches(batch_size=1024):
    rows += len(batch["x"])
assert rows == 200_000, rows
print(peak() - before)
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("arguments", [["local"], ["local", "shuffle"], ["global", "shuffle"]])
def test_memory_is_bounded(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 700, "MB more than before the iteration began"
