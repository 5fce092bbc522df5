"""``Dataset.summary``, and what else was added for scripts of Ray 2.60."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lockstep.data
from lockstep.data import MixStoppingCondition, RandomSeedConfig
from lockstep.data.aggregate import ApproximateTopK, Count, Sum
from lockstep.data.datatype import DataType, TypeCategory
from lockstep.data.expressions import col, download, pyarrow_udf, random, uuid
from lockstep.data.preprocessors import OrdinalEncoder
from tests.data.datasets import blocks, column

ROWS: list[dict[str, Any]] = [
    {"age": 25, "pay": 50.0, "name": "Ada", "on": datetime.date(2024, 1, 1), "v": [1, 2]},
    {"age": 30, "pay": 60.0, "name": None, "on": datetime.date(2024, 1, 3), "v": [3]},
    {"age": 0, "pay": None, "name": "Ada", "on": None, "v": None},
]


def test_summary() -> None:
    summary = lockstep.data.from_items(ROWS).summary()
    ages = summary.get_column_stats("age").set_index("statistic")["value"]
    assert ages["count"] == 3
    assert ages["max"] == 30
    assert ages["mean"] == pytest.approx(55 / 3)
    assert ages["approx_quantile[0]"] == 25
    assert ages["zero_pct"] == pytest.approx(100 / 3)
    frame = summary.to_pandas().set_index("statistic")
    assert frame["pay"]["missing_pct"] == pytest.approx(100 / 3)
    assert frame["name"]["approx_topk[0]"] == {"name": "Ada", "count": 2}
    assert frame["on"]["min"] == datetime.date(2024, 1, 1)
    assert frame["v"]["count"] == 3
    assert summary.dataset_schema.names == list(ROWS[0])
    with pytest.raises(ValueError, match="get_column_stats\\('x'\\): the summary has age"):
        summary.get_column_stats("x")


def test_a_summary_of_some_columns_with_other_aggregates() -> None:
    dataset = lockstep.data.from_items(ROWS)
    summary = dataset.summary(
        columns=["age"],
        override_dtype_agg_mapping={DataType.int64(): lambda name: [Count(name), Sum(name)]},
    )
    assert list(summary.columns) == ["age"]
    assert summary.statistics == {"age": {"count": 3, "sum": 55}}
    with pytest.raises(KeyError, match="no column 'x'"):
        dataset.summary(columns=["x"])


def test_a_summary_of_columns_whose_values_have_no_statistics() -> None:
    table = pa.table(
        {
            "flag": [True, None],
            "half": pa.array(np.array([1, 2], np.float16)),
            "span": pa.array([1, None], pa.duration("s")),
        }
    )
    assert lockstep.data.from_arrow(table).summary().statistics == {
        "flag": {"count": 2, "missing_pct": 50},
        "half": {"count": 2, "missing_pct": 0},
        "span": {"count": 2, "missing_pct": 50},
    }


def test_a_summary_of_a_column_called_statistic() -> None:
    summary = lockstep.data.from_items([{"statistic": 1, "x": 2}]).summary()
    with pytest.raises(ValueError, match="a column of the dataset is called 'statistic'"):
        summary.to_pandas()
    for name, most in (("statistic", 1), ("x", 2)):
        stats = summary.get_column_stats(name)
        assert stats.set_index("statistic")["value"]["max"] == most


def test_the_most_frequent_values_of_arrays() -> None:
    arrays = lockstep.data.from_items([{"a": np.array(v)} for v in ([1, 2], [2, 3], [1, 2])])
    assert arrays.aggregate(ApproximateTopK("a", 1, encode_lists=True)) == {
        "approx_topk(a)": [{"a": 2, "count": 3}]
    }
    assert arrays.aggregate(ApproximateTopK("a", 1)) == {
        "approx_topk(a)": [{"a": [1, 2], "count": 2}]
    }
    images = lockstep.data.from_items([{"a": np.eye(3, dtype=np.int64)}])
    assert images.aggregate(ApproximateTopK("a", 1, encode_lists=True)) == {
        "approx_topk(a)": [{"a": 0, "count": 6}]
    }


def test_the_most_frequent_values() -> None:
    dataset = lockstep.data.from_items([{"w": w} for w in "abacaba"])
    assert dataset.aggregate(ApproximateTopK("w", 2)) == {
        "approx_topk(w)": [{"w": "a", "count": 4}, {"w": "b", "count": 2}]
    }
    lists = lockstep.data.from_items([{"l": [1, 2]}, {"l": [2]}, {"l": [1, 2]}])
    assert lists.aggregate(ApproximateTopK("l", 1)) == {
        "approx_topk(l)": [{"l": [1, 2], "count": 2}]
    }
    assert lists.aggregate(ApproximateTopK("l", 1, encode_lists=True)) == {
        "approx_topk(l)": [{"l": 2, "count": 3}]
    }


def test_a_mix_keeps_the_proportions() -> None:
    one, other = blocks(40, 40), blocks(10, 10).map(lambda row: {"id": -1})
    mixed = one.mix(other, weights=[0.75, 0.25])
    ids = column(mixed)
    assert len(ids) == 50
    assert [i for i in ids if i >= 0] == list(range(40))
    assert ids[:12].count(-1) == 3
    shortest = one.mix(
        other, weights=[1, 1], stopping_condition=MixStoppingCondition.STOP_ON_SHORTEST
    )
    assert column(shortest).count(-1) == 10
    assert 18 <= shortest.count() <= 21


def test_a_mix_of_different_columns_and_of_nothing() -> None:
    one = lockstep.data.from_items([{"x": 1}, {"x": 2}])
    mixed = one.mix(lockstep.data.from_items([{"y": "a"}]))
    assert sorted(mixed.schema().names) == ["x", "y"]
    assert mixed.count() == 3
    empty = one.filter(lambda row: False)
    assert column(one.mix(empty), "x") == [1, 2]
    assert one.mix(empty, stopping_condition="stop_on_shortest").count() == 0


def test_the_arguments_of_mix_are_checked() -> None:
    one = blocks(4)
    for weights in ([1], [1, 0], [1, "x"]):
        with pytest.raises(ValueError, match="one positive number for each of the 2 datasets"):
            one.mix(one, weights=weights)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="call random_shuffle\\(\\) on the mixed dataset"):
        one.random_shuffle().mix(one).count()


def test_a_materialized_dataset_keeps_its_blocks() -> None:
    dataset = lockstep.data.range(100).repartition(4).materialize()
    assert dataset.num_blocks() == 4
    assert column(dataset) == list(range(100))
    # A function decides how many rows there are: the blocks are those of the table.
    kept = lockstep.data.range(100).filter(lambda row: row["id"] < 3).materialize()
    assert column(kept) == [0, 1, 2]


def test_expressions_without_columns(tmp_path: Path) -> None:
    dataset = blocks(10)
    numbers = dataset.with_column("r", random()).take_all()
    assert len({row["r"] for row in numbers}) == 10
    assert all(0 <= row["r"] < 1 for row in numbers)
    names = column(dataset.with_column("u", uuid().str.replace("-", "")), "u")
    assert {len(name) for name in names} == {32}
    assert len(set(names)) == 10
    with pytest.raises(ValueError, match=r"random\(seed=3\)"):
        random(seed=3)

    @pyarrow_udf(return_dtype=DataType.int64())
    def twice(values: pa.Array) -> pa.Array:
        return pa.compute.multiply(values, 2)

    assert column(dataset.with_column("t", twice(col("id"))), "t") == list(range(0, 20, 2))


def test_download(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"as it is")
    rows = [{"uri": str(tmp_path / "a.gz")}, {"uri": None}, {"uri": f"file://{tmp_path}/a.gz"}]
    dataset = lockstep.data.from_items(rows).with_column("bytes", download("uri"))
    assert column(dataset, "bytes") == [b"as it is", None, b"as it is"]
    missing = lockstep.data.from_items([{"uri": str(tmp_path / "no")}])
    with pytest.raises(FileNotFoundError, match="no"):
        missing.with_column("bytes", download("uri")).take_all()


def test_a_later_write_replaces_files_of_every_format(tmp_path: Path) -> None:
    for _ in range(2):
        blocks(6).write_orc(tmp_path, mode="overwrite")
    assert lockstep.data.read_orc(tmp_path).count() == 6


def test_names_that_are_not_there_name_others() -> None:
    with pytest.raises(AttributeError, match=r"no 'read_mongo'; use the source's own client"):
        lockstep.data.read_mongo  # noqa: B018
    assert lockstep.data.range(3).get_dataset_id().startswith("dataset_")
    assert lockstep.data.range(3).iterator().get_context() is lockstep.data.range(3).context


def test_arrays_and_lists_are_encoded() -> None:
    arrays = lockstep.data.from_items([{"a": np.array(["b", "a"])}, {"a": np.array(["c", "a"])}])
    assert [list(v) for v in column(OrdinalEncoder(["a"]).fit_transform(arrays), "a")] == [
        [1, 0],
        [2, 0],
    ]
    lists = lockstep.data.from_items([{"l": ["b", "a"]}, {"l": ["a"]}, {"l": ["b", "a"]}])
    encoder = OrdinalEncoder(["l"], encode_lists=False).fit(lists)
    assert encoder.stats_["unique_values(l)"] == {("a",): 0, ("b", "a"): 1}
    again = OrdinalEncoder.deserialize(encoder.serialize())
    assert column(again.transform(lists), "l") == [1, 0, 1]


def test_sql(tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "rows.db")

    with contextlib.closing(connect()) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT)")
    rows = lockstep.data.from_items([{"id": n, "s": f"row {n}"} for n in range(3)])
    rows.write_sql("INSERT INTO t VALUES (?, ?)", connect)
    assert lockstep.data.read_sql("SELECT * FROM t ORDER BY id", connect).take_all() == (
        rows.take_all()
    )
    few = lockstep.data.read_sql("SELECT s FROM t WHERE id > ?", connect, sql_params=(1,))
    assert column(few, "s") == ["row 2"]
    none = lockstep.data.read_sql("SELECT * FROM t WHERE id > 9", connect)
    assert (none.count(), none.columns()) == (0, ["id", "s"])
    with pytest.raises(sqlite3.IntegrityError):
        rows.union(lockstep.data.from_items([{"id": 7, "s": "x"}, {"id": 1, "s": "y"}])).write_sql(
            "INSERT INTO t VALUES (?, ?)", connect
        )
    assert lockstep.data.read_sql("SELECT * FROM t", connect).count() == 3


def test_sql_that_has_no_columns_or_one_twice() -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(":memory:")

    with pytest.raises(ValueError, match=r"called 'a', 'b'; give them different names with AS"):
        lockstep.data.read_sql("SELECT 1 AS b, 2 AS a, 3 AS b, 4 AS a, 5 AS c", connect)
    with pytest.raises(ValueError, match=r"^read_sql: the statement returns no rows\.$"):
        lockstep.data.read_sql("CREATE TABLE t (id INTEGER)", connect)


def test_seeds_as_objects() -> None:
    dataset = blocks(20)
    shuffled = dataset.random_shuffle(seed=RandomSeedConfig(3))
    assert column(shuffled) == column(dataset.random_shuffle(seed=3))
    sample = dataset.random_sample(0.5, seed=RandomSeedConfig(3))
    assert column(sample) == column(dataset.random_sample(0.5, seed=3))
    with pytest.raises(ValueError, match="each epoch has its own order"):
        dataset.random_shuffle(seed=RandomSeedConfig(3, reseed_after_execution=False))


def test_a_dataset_can_be_packed() -> None:
    dataset = blocks(4).map(lambda row: {"id": row["id"] * 2})
    assert dataset.has_serializable_lineage()
    assert not lockstep.data.from_items([1]).has_serializable_lineage()
    packed = dataset.serialize_lineage()
    assert column(lockstep.data.Dataset.deserialize_lineage(packed)) == [0, 2, 4, 6]
    assert lockstep.data.range(10).size_bytes() == 80


def test_types() -> None:
    structs = DataType.struct([("x", DataType.int64())])
    assert repr(structs) == "DataType(arrow:struct<x: int64>)"
    assert repr(DataType.from_numpy("int32")) == "DataType(numpy:int32)"
    assert repr(DataType(int)) == "DataType(python:int)"
    assert DataType(int).arrow == pa.int64()
    assert DataType(int).to_python_type() is int
    assert DataType(set).arrow is None
    assert DataType(set).to_numpy_dtype() == np.dtype(object)
    assert DataType(bool).arrow == pa.bool_()
    assert DataType.from_numpy("U3").arrow == pa.string()
    assert DataType.from_numpy("float32").to_numpy_dtype() == np.dtype("float32")
    assert structs.is_struct_type()
    assert structs.is_nested_type()
    assert structs.is_of("struct")
    assert not structs.is_list_type()
    for lists in (
        DataType.list(DataType.int8()),
        DataType.large_list(DataType.int8()),
        DataType.fixed_size_list(DataType.int8(), 2),
    ):
        assert lists.is_list_type()
    assert DataType.large_list(DataType.int8()).is_of(TypeCategory.LARGE_LIST)
    assert DataType.map(DataType.string(), DataType.int64()).is_map_type()
    assert DataType.tensor((2, 3), DataType.float32()).is_tensor_type()
    assert DataType.variable_shaped_tensor(DataType.float32()).is_tensor_type()
    assert DataType.temporal("timestamp", unit="s", tz="UTC").arrow == pa.timestamp("s", "UTC")
    assert DataType.temporal("date32").is_temporal_type()
    assert DataType.temporal("time64", unit="ns").arrow == pa.time64("ns")
    with pytest.raises(ValueError, match="temporal\\('x'\\)"):
        DataType.temporal("x")
    assert DataType.infer_dtype(5) == DataType.int64()
    assert DataType.infer_dtype(np.int32(4)) == DataType.from_numpy("int32")
    assert DataType.infer_dtype(object()).is_python_type()
    assert DataType.null().is_null_type()
    assert DataType.bool().is_boolean_type()
    assert DataType.int8().is_integer_type()
    assert DataType.float32().is_floating_type()
    assert DataType.float32().is_numerical_type()
    assert DataType.string().is_string_type()
    assert DataType.binary().is_binary_type()
    assert DataType(set).to_arrow_dtype([1]) == pa.int64()
    assert len({DataType.int8(), DataType.int8()}) == 1
    with pytest.raises(ValueError, match="was not made of a class"):
        DataType.int8().to_python_type()
    with pytest.raises(TypeError, match=r"DataType\('x'\)"):
        DataType("x")


def test_paths_of_this_machine_as_ray_writes_them(tmp_path: Path) -> None:
    blocks(4).write_parquet(f"local://{tmp_path}/data")
    assert lockstep.data.read_parquet(f"local://{tmp_path}/data").count() == 4
