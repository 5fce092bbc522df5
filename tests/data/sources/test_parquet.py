"""Parquet files: rows, columns, filters, and errors that name the file and the column."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import lockstep.data
from lockstep.data import Dataset
from lockstep.errors import StorageError
from tests.data.datasets import column


def test_rows_columns_and_row_groups(tmp_path: Path) -> None:
    table = pa.table({"x": range(10), "y": [str(i) for i in range(10)], "z": [0.5] * 10})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    dataset = lockstep.data.read_parquet(tmp_path)
    assert (dataset.count(), dataset.num_blocks()) == (10, 3)
    assert dataset.to_arrow().equals(table)
    assert dataset.schema().equals(table.schema)
    assert lockstep.data.read_parquet(tmp_path, columns=["z", "x"]).columns() == ["z", "x"]
    assert dataset.select_columns(["y"]).take(1) == [{"y": "0"}]


def test_only_the_columns_asked_for_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"x": [1], "y": [2], "z": [3]}), tmp_path / "a.parquet")
    asked = []
    read = pq.ParquetFile.read_row_group

    def listening(self: Any, group: int, columns: Any = None, **options: Any) -> Any:
        asked.append(columns)
        return read(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", listening)
    dataset = lockstep.data.read_parquet(tmp_path).rename_columns({"z": "a"})
    assert dataset.drop_columns("x").select_columns(["a"]).take_all() == [{"a": 3}]
    train, _ = dataset.union(dataset).train_test_split(1)
    assert train.select_columns("y").take_all() == [{"y": 2}]
    assert asked == [["z"], ["y"]]


def test_a_filter_and_columns_read_no_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    table = pa.table({"x": range(5), "y z": range(5), "w": range(5), "s": [{"a": 1}] * 5})
    pq.write_table(table, tmp_path / "a.parquet")
    asked = []
    read = pq.ParquetFile.read_row_group

    def listening(self: Any, group: int, columns: Any = None, **options: Any) -> Any:
        asked.append(columns)
        return read(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", listening)
    few = lockstep.data.read_parquet(tmp_path, columns=["w"], filters="x > 3")
    assert few.take_all() == [{"w": 4}]
    spaced = lockstep.data.read_parquet(tmp_path).filter(expr=pc.field("y z") > 2)
    assert spaced.filter(expr="x < 4").select_columns(["x"]).take_all() == [{"x": 3}]
    nested = lockstep.data.read_parquet(tmp_path).filter(expr=pc.field("s", "a") == 1)
    assert nested.select_columns(["x"]).count() == 5
    assert nested.select_columns(["x"]).take(1) == [{"x": 0}]
    assert asked == [["x", "w"], ["x", "y z"], table.column_names]


def test_filters(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"x": range(100), "k": ["a", "b"] * 50}), tmp_path / "a", row_group_size=10
    )

    def found(filters: Any) -> Dataset:
        return lockstep.data.read_parquet(tmp_path / "a", filters=filters, columns=["x"])

    few = found("x >= 95 and k == 'a'")
    assert few.num_blocks() == 1  # the statistics rule out the other nine
    assert column(few, "x") == [96, 98]
    assert few.count() == 2
    assert column(found(pc.field("x") < 2), "x") == [0, 1]
    assert column(found([("x", "<", 30), ("k", "in", {"b"})]), "x") == list(range(1, 30, 2))
    assert column(found("x < 0"), "x") == []
    with pytest.raises(ValueError, match="does not fit the columns x, k"):
        found("q > 3")


def test_files_that_differ(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "y": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1], "y": ["1"]}), tmp_path / "b.parquet")
    with pytest.raises(
        ValueError, match=r"'y' is string in '.*b.parquet' but int64 in '.*a.parquet'"
    ):
        lockstep.data.read_parquet(tmp_path)
    assert lockstep.data.read_parquet(tmp_path, columns=["x"]).count() == 2


@pytest.mark.parametrize("first", ["whole", "short", "null"])
def test_files_without_some_columns(tmp_path: Path, first: str) -> None:
    tables = {
        "whole": pa.table({"x": [1, 2], "y": [0.5, 1.5], "t": [[1], [2]]}),
        "short": pa.table({"x": pa.array([3, 4], pa.int32())}),
        "null": pa.table({"y": pa.nulls(2), "x": [5, 6], "z": ["a", "b"]}),
    }
    names = [first, *(name for name in tables if name != first)]
    for number, name in enumerate(names):
        pq.write_table(tables[name], tmp_path / f"{number}.parquet")
    full = [
        {key: row.get(key) for key in ("x", "y", "t", "z")}
        for name in names
        for row in tables[name].to_pylist()
    ]
    dataset = lockstep.data.read_parquet(tmp_path)
    assert dataset.schema().field("y").type == pa.float64()
    assert dataset.take_all() == full
    assert pickle.loads(pickle.dumps(dataset)).take_all() == full
    assert dataset.select_columns(["z"]).take_all() == [{"z": row["z"]} for row in full]
    only = lockstep.data.read_parquet(tmp_path, columns=["y", "z"])
    assert only.take_all() == [{"y": row["y"], "z": row["z"]} for row in full]
    (batch,) = dataset.select_columns(["x", "y"]).iter_torch_batches(batch_size=6)
    assert (sorted(batch["x"].tolist()), int(batch["y"].isnan().sum())) == ([1, 2, 3, 4, 5, 6], 4)
    for filters, count in (("y > 1", 1), ("z == 'a'", 1), ("x >= 3", 4), ("z is None", 4)):
        found = lockstep.data.read_parquet(tmp_path, filters=filters)
        assert (found.count(), len(found.take_all())) == (count, count)


def test_files_of_which_only_one_has_an_index(tmp_path: Path) -> None:
    """What pandas stored about the first file must not change the rows of the second."""
    frame = pd.DataFrame({"x": [1, 2]}, index=pd.Index([7, 8], name="i"))
    frame.to_parquet(tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [3]}), tmp_path / "b.parquet")
    found = lockstep.data.read_parquet(tmp_path).to_pandas()
    assert list(found.columns) == ["x", "i"]
    assert found["x"].tolist() == [1, 2, 3]


def test_a_missing_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "y": [1]}), tmp_path / "a.parquet")
    with pytest.raises(KeyError, match=r"a.parquet' has no column 'q'; it has x, y"):
        lockstep.data.read_parquet(tmp_path, columns=["q"])
    with pytest.raises(KeyError, match="there is no column 'q'; there are x, y"):
        lockstep.data.read_parquet(tmp_path).select_columns(["q"])


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(
        StorageError, match=r"Could not read '.*a.parquet': .*smaller than the minimum"
    ):
        lockstep.data.read_parquet(tmp_path)


def test_a_file_that_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.random.default_rng(0).random(10_000)}), file)
    data = bytearray(file.read_bytes())
    data[4:2000] = bytes(1996)
    file.write_bytes(data)
    with pytest.raises(StorageError, match=r"Could not read '.*a.parquet'"):
        list(lockstep.data.read_parquet(file).iter_batches())


def test_a_large_row_group_without_a_column(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("lockstep.data.plan.order.STREAMED_BYTES", 0)
    pq.write_table(pa.table({"x": [1], "y": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [2, 3]}), tmp_path / "b.parquet")
    dataset = lockstep.data.read_parquet(tmp_path, columns=["y"])
    assert column(dataset, "y") == [1, None, None]


def test_a_schema_of_ones_own(tmp_path: Path) -> None:
    lockstep.data.from_items([{"x": 1, "y": "a"}]).write_parquet(tmp_path)
    schema = pa.schema([("x", pa.float32()), ("z", pa.string())])
    dataset = lockstep.data.read_parquet(tmp_path, schema=schema)
    assert dataset.schema() == schema
    assert dataset.take_all() == [{"x": 1.0, "z": None}]


def test_a_schema_casts_columns_that_differ_between_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 20], "k": [0, 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": ["x"], "k": [2]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"give the column's type in schema="):
        lockstep.data.read_parquet(tmp_path)
    schema = pa.schema([("a", pa.string())])
    dataset = lockstep.data.read_parquet(tmp_path, schema=schema)
    assert dataset.schema() == schema
    assert column(dataset, "a") == ["1", "20", "x"]
    assert pickle.loads(pickle.dumps(dataset)).count() == 3
    for filters, kept in ((pc.field("a") == "20", ["20"]), (pc.field("k") > 0, ["20", "x"])):
        filtered = lockstep.data.read_parquet(tmp_path, schema=schema, filters=filters)
        assert column(filtered, "a") == kept
        assert filtered.columns() == ["a"]
    paths = lockstep.data.read_parquet(
        tmp_path,
        schema=pa.schema([("path", pa.string()), ("a", pa.string())]),
        include_paths=True,
    )
    assert [(Path(row["path"]).name, row["a"]) for row in paths.take_all()][1:] == [
        ("a.parquet", "20"),
        ("b.parquet", "x"),
    ]


def test_only_the_columns_of_a_schema_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"x": [1], "y": [2], "z": [3]}), tmp_path / "a.parquet")
    asked = []
    read = pq.ParquetFile.read_row_group

    def recorded(self: Any, group: int, columns: Any = None, **options: Any) -> Any:
        asked.append(columns)
        return read(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", recorded)
    schema = pa.schema([("z", pa.float64()), ("new", pa.int8())])
    dataset = lockstep.data.read_parquet(tmp_path, schema=schema)
    assert dataset.take_all() == [{"z": 3.0, "new": None}]
    assert asked == [["z"]]
    some = lockstep.data.read_parquet(tmp_path, columns=["z"], schema=schema)
    assert some.take_all() == [{"z": 3.0}]
    only_new = lockstep.data.read_parquet(tmp_path, schema=pa.schema([("new", pa.int8())]))
    assert only_new.take_all() == [{"new": None}]


def test_a_schema_that_does_not_fit_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["x"], "l": [[1]]}), tmp_path / "a.parquet")
    with pytest.raises(TypeError, match=r"schema=\{'a': 'int'\}\): a dict is no schema; give a"):
        lockstep.data.read_parquet(tmp_path, schema={"a": "int"})
    with pytest.raises(KeyError, match=r"schema=…\): there is no column 'l'"):
        lockstep.data.read_parquet(tmp_path, columns=["l"], schema=pa.schema([("a", pa.string())]))
    wrong = lockstep.data.read_parquet(tmp_path, schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(ValueError, match=r"Column 'a' is string and cannot become int64.*schema="):
        wrong.take_all()
    with pytest.raises(ValueError, match=r"Column 'l' is list.*cannot become int64.*schema="):
        lockstep.data.read_parquet(tmp_path, schema=pa.schema([("l", pa.int64())]))
