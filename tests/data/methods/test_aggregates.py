"""Aggregates of columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lockstep.data
from lockstep.errors import StorageError
from tests.data.datasets import blocks


def test_numbers() -> None:
    values = [1.5, -2.0, None, 4.0, 10.0]
    dataset = lockstep.data.from_items(
        [{"x": v, "i": n} for n, v in enumerate(values)], override_num_blocks=3
    )
    present = [v for v in values if v is not None]
    assert dataset.sum("x") == sum(present)
    assert dataset.min("x") == -2
    assert dataset.max("x") == 10
    assert dataset.mean("x") == pytest.approx(np.mean(present))
    assert dataset.std("x") == pytest.approx(np.std(present, ddof=1))
    assert dataset.std("x", ddof=0) == pytest.approx(np.std(present))
    assert dataset.sum("x", ignore_nulls=False) is None
    assert dataset.sum(["i", "x"]) == {"sum(i)": 10, "sum(x)": 13.5}
    assert dataset.max() == {"max(x)": 10, "max(i)": 4}
    assert blocks(5).mean() == 2
    assert lockstep.data.from_items([{"x": 1}]).std("x") is None
    with pytest.raises(KeyError, match="sum: there is no column 'q'"):
        dataset.sum("q")
    with pytest.raises(TypeError, match="cannot be computed for column 's' of type string"):
        lockstep.data.from_items([{"s": "a"}]).sum("s")


def test_a_standard_deviation_far_from_zero() -> None:
    numbers = 1e9 + np.arange(1000) % 7
    dataset = lockstep.data.from_numpy({"x": numbers}).repartition(9)
    assert dataset.std("x") == pytest.approx(np.std(numbers, ddof=1), rel=1e-9)


def test_without_rows() -> None:
    empty = blocks(5).filter(lambda row: False)
    assert empty.count() == 0
    assert empty.sum("id") is None
    assert empty.unique("id") == []
    assert empty.take(3) == []
    assert empty.to_pandas().columns.tolist() == ["id"]
    with pytest.raises(ValueError, match="the dataset is empty"):
        empty.take_batch()


def test_nothing_of_nothing() -> None:
    nothing = blocks(0)
    for dataset in (
        nothing,
        nothing.sort("id"),
        nothing.zip(nothing.rename_columns({"id": "x"})),
        nothing.union(nothing),
        nothing.limit(3),
        blocks(5).split_at_indices([5])[1],
        blocks(5).random_sample(0.0),
        blocks(5).random_shuffle(seed=1).limit(0),
    ):
        for one in (dataset, dataset.random_shuffle(), dataset.randomize_block_order()):
            assert one.take_all() == []
            assert one.count() == 0
            assert one.columns() in (["id"], ["id", "x"])
            assert list(one.prepare(2, equal=False).shard(1).iter_batches()) == []


def test_unique() -> None:
    dataset = lockstep.data.from_items([{"x": v} for v in ("b", None, "a", "b")] * 3)
    assert dataset.repartition(5).unique("x") == ["b", None, "a"]
    assert dataset.unique("x", ignore_nulls=True) == ["b", "a"]
    late = blocks(4).map(lambda row: {"x": None if row["id"] < 2 else 5})
    assert late.unique("x") == [None, 5]
    with pytest.raises(KeyError, match="unique: there is no column 'y'; there are x"):
        dataset.unique("y")


def test_only_the_columns_asked_for_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(1000), "y": range(1000)}), file, compression="none")
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(1)
    with file.open("r+b") as damaged:
        damaged.seek(chunk.file_offset or chunk.data_page_offset)
        damaged.write(b"\xff" * 100)
    dataset = lockstep.data.read_parquet(file)
    with pytest.raises(StorageError, match=r"a\.parquet"):
        dataset.sum()
    assert (dataset.sum("x"), dataset.max(["x"])) == (499500, {"max(x)": 999})
    assert dataset.unique("x") == list(range(1000))
    with pytest.raises(KeyError, match="mean: there is no column 'z'; there are x, y"):
        dataset.mean("z")
