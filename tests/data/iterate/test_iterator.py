"""Batches and rows of datasets and shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lockstep.data
from lockstep.data import Dataset, DataShard
from tests.data.datasets import blocks


def shard(dataset: Dataset, size: int = 1, rank: int = 0, **options: Any) -> DataShard:
    return dataset.prepare(size, **options).shard(rank)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
@pytest.mark.parametrize("batch_size", [1, 7, 25, 30, 200, None])
def test_sizes_and_formats(batch_size: int | None, batch_format: str, prefetch: int) -> None:
    dataset = blocks(103)
    for drop_last in (False, True):
        batches = list(
            dataset.iter_batches(
                batch_size=batch_size,
                batch_format=batch_format,
                prefetch_batches=prefetch,
                drop_last=drop_last,
            )
        )
        kinds = {"numpy": "dict", "pandas": "DataFrame", "pyarrow": "Table"}
        assert {type(batch).__name__ for batch in batches} <= {kinds[batch_format]}
        lengths = [len(b["id"]) for b in batches]
        rows = [int(i) for b in batches for i in np.asarray(b["id"])]
        if batch_size is None:
            assert lengths == [26, 26, 26, 25]
        else:
            full, rest = divmod(103, batch_size)
            assert lengths == [batch_size] * full + [rest] * (rest > 0 and not drop_last)
        assert rows == list(range(sum(lengths)))


def test_every_iteration_is_an_epoch_and_next_works() -> None:
    batches = blocks(10).iter_batches(batch_size=4)
    assert [len(b["id"]) for b in batches] == [4, 4, 2]
    assert [len(b["id"]) for b in batches] == [4, 4, 2]
    assert [next(batches)["id"][0] for _ in range(3)] == [0, 4, 8]
    with pytest.raises(StopIteration):
        next(batches)
    rows = shard(blocks(3)).iter_rows()
    assert next(rows) == {"id": 0}
    assert list(rows) == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_rows() -> None:
    assert [row["id"] for row in blocks(5000).iter_rows()] == list(range(5000))
    plan = blocks(10).prepare(3, order="global", equal=False)
    seen = [[row["id"] for row in plan.shard(rank).iter_rows()] for rank in range(3)]
    assert seen == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 is too small"),
        ({"batch_size": 2.5}, "batch_size=2.5 is not an integer"),
        ({"prefetch_batches": -1}, "prefetch_batches=-1 is too small"),
        ({"local_shuffle_buffer_size": 0}, "local_shuffle_buffer_size=0 is too small"),
        ({"batch_size": None, "local_shuffle_buffer_size": 9}, "needs a batch_size"),
        ({"batch_format": "list"}, "batch_format='list' is not known"),
    ],
)
def test_arguments_are_checked_when_given(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        blocks(5).iter_batches(**options)


def test_numbers_of_numpy() -> None:
    five: Any = np.int64(5)
    seed: Any = np.uint8(3)
    dataset = lockstep.data.range(five * 4).random_shuffle(seed=seed).limit(five * 3)
    part = shard(dataset, five - 3, order="global", seed=five)
    batches = part.iter_batches(
        batch_size=five, local_shuffle_buffer_size=five, local_shuffle_seed=five
    )
    assert len(next(batches)["id"]) == 3
    assert json.loads(json.dumps(part.state_dict())) == part.state_dict()
    assert lockstep.data.DataConfig(seed=five).seed == 5
    for wrong in (2.0, True, "4"):
        with pytest.raises(ValueError, match=r"limit\(.*\) is not an integer; give 0"):
            dataset.limit(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"random_shuffle\(seed=.*\): give an integer"):
            dataset.random_shuffle(seed=wrong)  # type: ignore[arg-type]


def test_global_batches_need_a_row_for_each_worker() -> None:
    part = shard(blocks(20), 3, order="global")
    with pytest.raises(ValueError, match="batch_size=2 counts the rows of all 3 workers"):
        next(part.iter_batches(batch_size=2))
    with pytest.raises(ValueError, match='batch_size=None needs order="local"'):
        next(part.iter_batches(batch_size=None))


def test_a_local_shuffle_permutes_each_so_many_rows() -> None:
    def rows(seed: int | None) -> list[int]:
        batches = blocks(100).iter_batches(
            batch_size=8, local_shuffle_buffer_size=20, local_shuffle_seed=seed
        )
        return [int(i) for batch in batches for i in batch["id"]]

    one = rows(1)
    for start in range(0, 100, 20):
        window = one[start : start + 20]
        assert sorted(window) == list(range(start, start + 20)) != window
    assert rows(1) == one
    assert rows(2) != one
    assert rows(None) != rows(None)


def test_two_iterations_at_once() -> None:
    part = shard(blocks(100).random_shuffle(seed=1))
    first, second = part.iter_batches(batch_size=50), part.iter_batches(batch_size=50)
    epochs: list[list[int]] = [[], []]
    for one, two in zip(first, second, strict=True):
        epochs[0] += one["id"].tolist()
        epochs[1] += two["id"].tolist()
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(100))
    assert epochs[0] != epochs[1]
    assert part.state_dict()["epoch"] == 2


def test_numpy_batches_share_the_memory_of_the_table() -> None:
    table = pa.table({"x": np.arange(100)})
    batch = next(lockstep.data.from_arrow(table).iter_batches(batch_size=10))
    assert np.shares_memory(batch["x"], table["x"].chunk(0).to_numpy())
    assert not batch["x"].flags.writeable


def test_complete_shards() -> None:
    part = shard(blocks(10), 2, 1)
    assert part.to_pandas()["id"].tolist() == [5, 6, 7, 8, 9]
    assert part.materialize().count() == 5
    assert part.to_arrow().num_rows == 5
    assert part.schema().names == ["id"]
    assert (part.count(), part.world_size) == (5, 2)
    assert part.state_dict()["epoch"] == 0
    assert repr(part) == "DataShard(rank=1, world_size=2, rows=5)"
    empty = shard(blocks(1), 2, 1)
    assert empty.to_pandas().columns.tolist() == ["id"]
    with pytest.raises(ValueError, match="rank=2 is not one of 2 workers"):
        blocks(10).prepare(2).shard(2)


def test_plans_are_checked() -> None:
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match=rf"world_size={wrong} .*; give 1 or more"):
            blocks(3).prepare(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="order='random' is not known"):
        blocks(3).prepare(1, order="random")


def test_a_large_row_group_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.data.plan.order.STREAMED_BYTES", 1000)
    monkeypatch.setattr("lockstep.data.sources.parquet.BLOCK_BYTES", 500)
    pq.write_table(pa.table({"x": range(1000), "y": range(1000)}), tmp_path / "a.parquet")
    dataset = lockstep.data.read_parquet(tmp_path).rename_columns({"x": "id"})
    assert dataset.num_blocks() == 1
    assert len(list(dataset.iter_batches(batch_size=None))) > 10
    assert [row["id"] for row in dataset.take_all()] == list(range(1000))
    plus = dataset.map(lambda row: {"id": row["id"] + 1})
    assert [row["id"] for row in plus.split(3)[1].take_all()] == list(range(334, 667))
    for order in ("local", "global"):
        plan = dataset.prepare(3, equal=False, order=order)
        parts = [
            [int(i) for b in plan.shard(rank).iter_batches(batch_size=30) for i in b["id"]]
            for rank in range(3)
        ]
        assert sorted(i for part in parts for i in part) == list(range(1000))
    for _ in dataset.iter_batches(batch_size=10, prefetch_batches=0):
        break  # the file is closed with the iteration


def test_statistics_are_text_with_values() -> None:
    dataset = lockstep.data.range(5)
    assert dataset.stats() == ""
    for _ in dataset.iter_batches(batch_size=2):
        pass
    text = dataset.stats()
    assert isinstance(text, str)
    assert text.startswith("5 rows in 3 batches")
    assert (text.rows, text.batches) == (5, 3)
