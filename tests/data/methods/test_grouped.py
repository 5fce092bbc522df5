"""Groups of rows: aggregates and functions of each."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lockstep.data
from lockstep.data.aggregate import (
    AbsMax,
    AggregateFn,
    AggregateFnV2,
    ApproximateQuantile,
    AsList,
    Count,
    CountDistinct,
    Max,
    Mean,
    Min,
    MissingValuePercentage,
    Quantile,
    Std,
    Sum,
    Unique,
    ValueCounter,
    ZeroPercentage,
)

ROWS = [
    {"g": "b", "x": 1, "y": None},
    {"g": "a", "x": 3, "y": 2.0},
    {"g": "b", "x": -5, "y": 1.0},
    {"g": None, "x": 0, "y": 4.0},
    {"g": "a", "x": 3, "y": 3.0},
]


@pytest.fixture
def dataset() -> lockstep.data.Dataset:
    return lockstep.data.from_items(ROWS, override_num_blocks=3)


def test_aggregates_of_groups_are_sorted_by_key(dataset: lockstep.data.Dataset) -> None:
    groups = dataset.groupby("g")
    assert groups.count().take_all() == [
        {"g": "a", "count()": 2},
        {"g": "b", "count()": 2},
        {"g": None, "count()": 1},
    ]
    assert [row["sum(x)"] for row in groups.sum("x").take_all()] == [6, -4, 0]
    assert [row["min(x)"] for row in groups.min("x").take_all()] == [3, -5, 0]
    assert [row["max(y)"] for row in groups.max("y").take_all()] == [3.0, 1.0, 4.0]
    assert groups.mean(["x", "y"]).take(1) == [{"g": "a", "mean(x)": 3.0, "mean(y)": 2.5}]
    assert groups.sum().columns() == ["g", "sum(x)", "sum(y)"]
    assert [row["sum(y)"] for row in groups.sum("y", ignore_nulls=False).take_all()] == [5, None, 4]
    deviations = [row["std(x)"] for row in groups.std("x").take_all()]
    assert deviations == [0.0, pytest.approx(np.std([1, -5], ddof=1)), None]
    assert [r["std(x)"] for r in groups.std("x", ddof=0).take_all()] == [0.0, 3.0, 0.0]


def test_every_function_of_groups_and_of_a_whole_dataset(dataset: lockstep.data.Dataset) -> None:
    def functions() -> list[AggregateFn]:
        return [
            Count(), Count("y", ignore_nulls=True), Sum("x"), Min("x"), Max("x"), Mean("x"),
            Std("x", ddof=0), AbsMax("x"), Quantile("x"), Unique("x"), CountDistinct("x"),
            AsList("y"), ValueCounter("x"), MissingValuePercentage("y"), ZeroPercentage("x"),
            ApproximateQuantile("x", [0.0, 1.0]), Sum("x", alias_name="total"),
        ]  # fmt: skip

    rows = {row["g"]: row for row in dataset.groupby("g").aggregate(*functions()).take_all()}
    assert rows["b"] == {
        "g": "b", "count()": 2, "count(y)": 1, "sum(x)": -4, "min(x)": -5, "max(x)": 1,
        "mean(x)": -2.0, "std(x)": 3.0, "abs_max(x)": 5, "quantile(x)": -2.0,
        "unique(x)": [1, -5], "count_distinct(x)": 2, "list(y)": [None, 1.0],
        "value_counter(x)": {"values": [1, -5], "counts": [1, 1]}, "missing_pct(y)": 50.0,
        "zero_pct(x)": 0.0, "approx_quantile(x)": [-5.0, 1.0], "total": -4,
    }  # fmt: skip
    whole = dataset.aggregate(*functions())
    assert whole["count()"] == 5
    assert (whole["sum(x)"], whole["abs_max(x)"], whole["zero_pct(x)"]) == (2, 5, 20.0)
    assert whole["unique(x)"] == [1, 3, -5, 0]
    assert whole["value_counter(x)"]["counts"] == [1, 2, 1, 1]
    assert whole["list(y)"] == [None, 2.0, 1.0, 4.0, 3.0]
    assert dataset.groupby(None).aggregate(Sum("x")).take_all() == [{"sum(x)": 2}]


def test_several_keys_and_tensors() -> None:
    data = lockstep.data.from_numpy(
        {"a": np.arange(6) % 2, "b": np.arange(6) // 3, "t": np.arange(12.0).reshape(6, 2)}
    )
    rows = data.groupby(["a", "b"]).aggregate(Mean("t"), Count()).take_all()
    assert [(row["a"], row["b"], row["count()"]) for row in rows] == [
        (0, 0, 2),
        (0, 1, 1),
        (1, 0, 1),
        (1, 1, 2),
    ]
    np.testing.assert_array_equal(rows[0]["mean(t)"], [2.0, 3.0])
    np.testing.assert_array_equal(data.mean("t"), [5.0, 6.0])
    np.testing.assert_allclose(data.std("t"), np.arange(12.0).reshape(6, 2).std(0, ddof=1))
    np.testing.assert_array_equal(data.max("t"), [10.0, 11.0])


def test_functions_of_the_user(dataset: lockstep.data.Dataset) -> None:
    longest = AggregateFn(
        init=lambda key: "",
        accumulate_row=lambda longest, row: max(longest, row["g"] or "", key=len),
        merge=max,
        name="longest",
        finalize=str.upper,
    )

    class Product(AggregateFnV2):
        def __init__(self, on: str) -> None:
            super().__init__(f"product({on})", lambda: 1, on=on, ignore_nulls=True)

        def aggregate_block(self, block: Any) -> Any:
            return pc.product(block[self.on]).as_py()

        def combine(self, current_accumulator: Any, new: Any) -> Any:
            return current_accumulator * new

    assert dataset.aggregate(longest, Product("y")) == {"longest": "B", "product(y)": 24.0}
    rows = dataset.groupby("g").aggregate(longest, Product("x")).take_all()
    assert rows[0] == {"g": "a", "longest": "A", "product(x)": 9}


@pytest.mark.parametrize("processes", [False, True])
def test_map_groups(dataset: lockstep.data.Dataset, processes: bool) -> None:
    def first(group: dict[str, Any]) -> dict[str, Any]:
        return {"g": group["g"][:1], "n": [len(group["x"])]}

    mapped = dataset.groupby("g").map_groups(first, processes=processes, concurrency=1)
    assert mapped.take_all() == [{"g": "a", "n": 2}, {"g": "b", "n": 2}, {"g": None, "n": 1}]
    assert mapped.count() == 3


def test_map_groups_gets_frames_in_order(dataset: lockstep.data.Dataset) -> None:
    def largest(group: pd.DataFrame, key: str) -> pd.DataFrame:
        return group.sort_values(key).tail(1)

    mapped = dataset.groupby("g").map_groups(largest, batch_format="pandas", fn_kwargs={"key": "x"})
    assert [row["x"] for row in mapped.take_all()] == [3, 1, 0]
    assert [row["x"] for row in pickle.loads(cloudpickle.dumps(mapped)).take_all()] == [3, 1, 0]
    assert dataset.groupby(None).map_groups(lambda rows: {"n": [len(rows["x"])]}).take_all() == [
        {"n": 5}
    ]


def test_no_rows() -> None:
    empty = lockstep.data.from_arrow(pa.table({"g": pa.array([], pa.int32()), "x": pa.array([])}))
    assert empty.groupby("g").count().take_all() == []
    assert empty.groupby("g").map_groups(lambda rows: rows).take_all() == []
    assert empty.aggregate(Sum("x"), Count()) == {"sum(x)": None, "count()": 0}


def test_errors(dataset: lockstep.data.Dataset) -> None:
    with pytest.raises(KeyError, match="groupby: there is no column 'q'; there are g, x, y"):
        dataset.groupby("q")
    with pytest.raises(KeyError, match="groupby: there is no column 'q'"):
        dataset.groupby("g").sum("q").take_all()
    with pytest.raises(ValueError, match="give one or more of lockstep"):
        dataset.groupby("g").aggregate()
    with pytest.raises(TypeError, match="give one or more of lockstep"):
        dataset.aggregate("sum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give the name of a column"):
        Sum()
    with pytest.raises(TypeError, match=r"sum\(\) cannot be computed for column 'g' of type"):
        dataset.groupby("x").sum("g").take_all()
    with pytest.raises(ValueError, match="either accumulate_row or accumulate_block"):
        AggregateFn(lambda key: 0, max, "n")
