"""Columns of Python objects, where Arrow has no type for the values."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lockstep.data
from lockstep import train
from lockstep.config import RunConfig, ScalingConfig
from lockstep.data.arrow.objects import from_objects, is_object, object_type, restored
from lockstep.data.sources.shared_tables import SharedTables, open_shared
from lockstep.train import DataParallelTrainer


class Point:
    """What Arrow has no type for."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]


POINTS = [Point(0), None, Point(2)]


def test_from_items_and_back() -> None:
    dataset = lockstep.data.from_items([{"p": point} for point in POINTS])
    assert [row["p"] for row in dataset.take_all()] == POINTS
    assert is_object(dataset.schema().types[0])
    assert list(dataset.to_pandas()["p"]) == POINTS
    (batch,) = dataset.iter_batches(batch_size=None)
    assert batch["p"].dtype == object
    assert list(batch["p"]) == POINTS
    assert lockstep.data.from_items(POINTS).take(1) == [{"item": Point(0)}]


def test_functions_may_return_objects() -> None:
    dataset = lockstep.data.range(4, override_num_blocks=2)
    mapped = dataset.map(lambda row: {"p": Point(row["id"])})
    assert [row["p"].x for row in mapped.take_all()] == [0, 1, 2, 3]

    def doubled(batch: dict[str, Any]) -> dict[str, Any]:
        return {"p": np.array([Point(p.x * 2) for p in batch["p"]], dtype=object)}

    assert [row["p"].x for row in mapped.map_batches(doubled).take_all()] == [0, 2, 4, 6]
    frames = dataset.map_batches(
        lambda frame: pd.DataFrame({"p": [Point(i) for i in frame["id"]]}), batch_format="pandas"
    )
    assert [row["p"].x for row in frames.take_all()] == [0, 1, 2, 3]


def test_they_are_chosen_and_reordered_as_other_rows() -> None:
    dataset = lockstep.data.from_items([{"n": n, "p": Point(n)} for n in range(20)])
    changed = dataset.filter(lambda row: row["p"].x % 2 == 0).sort("n", descending=True)
    assert [row["p"].x for row in changed.take(3)] == [18, 16, 14]
    shuffled = dataset.random_shuffle(seed=1).take_all()
    assert sorted(row["p"].x for row in shuffled) == list(range(20))
    assert all(row["p"].x == row["n"] for row in shuffled)


def test_they_travel_to_workers_and_other_processes(tmp_path: Path) -> None:
    def function() -> None:
        rows = list(train.get_dataset_shard("train").iter_rows())
        train.report({"sum": sum(row["p"].x for row in rows)})

    made = lockstep.data.range(8).map(lambda row: {"p": Point(row["id"])}, processes=True)
    trainer = DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
        datasets={"train": made.materialize()},
    )
    assert trainer.fit().metrics["sum"] == 28


def test_a_file_never_makes_objects(tmp_path: Path) -> None:
    """Reading a file must not execute what is in it."""
    array = from_objects([Point(1)])
    with pytest.raises(TypeError, match="Column 'p' has Python objects, which files cannot hold"):
        lockstep.data.from_items([{"p": Point(1)}]).write_parquet(tmp_path)
    pq.write_table(pa.table({"p": array}), tmp_path / "other.parquet")
    (row,) = lockstep.data.read_parquet(tmp_path / "other.parquet").take_all()
    assert isinstance(row["p"], bytes)
    (row,) = lockstep.data.from_arrow(pq.read_table(tmp_path / "other.parquet")).take_all()
    assert isinstance(row["p"], bytes)


def test_a_table_from_another_process() -> None:
    table = pa.table({"n": [1], "p": from_objects([Point(1)])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    read = pa.ipc.open_stream(sink.getvalue()).read_all()
    assert not is_object(read.schema.field("p").type)
    assert restored(read).schema.field("p").type == object_type()
    assert pickle.loads(pickle.dumps(object_type())) == object_type()


def test_what_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"from_items, column 'item': a generator has no type"):
        lockstep.data.from_items([(n for n in range(3))])


def test_values_of_two_types_are_an_error_still() -> None:
    with pytest.raises(ValueError, match="column 'item': Could not convert 'x'"):
        lockstep.data.from_items([1, "x"])


def test_ragged_arrays_come_back_as_arrays_and_lists_as_lists(tmp_path: Path) -> None:
    rows = [{"a": np.arange(n), "l": list(range(n))} for n in (1, 3, 2)]
    dataset = lockstep.data.from_items(rows)
    dataset.write_parquet(tmp_path)
    for found in (dataset.take_all(), lockstep.data.read_parquet(tmp_path).take_all()):
        for row, given in zip(found, rows, strict=True):
            assert isinstance(row["a"], np.ndarray)
            assert row["a"].tolist() == given["l"]
            row["a"] += 1  # may be written to
            assert row["l"] == given["l"]


def test_blocks_with_arrays_of_different_lengths_are_one_dataset() -> None:
    dataset = lockstep.data.range(3, override_num_blocks=3).map(
        lambda row: {"a": np.full(row["id"] + 1, row["id"])}
    )
    assert [row["a"].tolist() for row in dataset.take_all()] == [[0], [1, 1], [2, 2, 2]]
    (batch,) = dataset.iter_batches(batch_size=3, batch_format="numpy")
    assert [array.tolist() for array in batch["a"]] == [[0], [1, 1], [2, 2, 2]]


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_file_that_says_it_has_objects_is_bytes_in_every_process(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    evil = pa.array([pickle.dumps(Evil(touched))] * 4, pa.large_binary())
    field = pa.field("p", pa.large_binary(), metadata={"ARROW:extension:name": "lockstep.object"})
    pq.write_table(pa.table([evil], schema=pa.schema([field])), tmp_path / "evil.parquet")
    dataset = lockstep.data.read_parquet(str(tmp_path / "evil.parquet"))
    rows = dataset.map_batches(lambda batch: batch, processes=True, concurrency=1).take_all()
    assert rows[0]["p"] == evil[0].as_py()
    tables = SharedTables()
    try:
        shared = open_shared(tables.add(dataset.to_arrow()))
        assert shared.schema.types == [pa.large_binary()]
    finally:
        tables.close()
    assert not touched.exists()
