"""Expressions over columns."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import lockstep.data
from lockstep.data.datatype import DataType
from lockstep.data.expressions import Expr, col, lit, udf
from tests.data.datasets import blocks, column

ROWS = [
    {"x": 1, "y": 2.5, "s": " ab", "l": [1, 2], "t": datetime.datetime(2024, 5, 6)},
    {"x": 7, "y": None, "s": "Cd", "l": [3], "t": datetime.datetime(2025, 1, 2)},
]


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        (col("x") + 1, [2, 8]),
        (1 + col("x") * 2, [3, 15]),
        (10 - col("x"), [9, 3]),
        (col("x") / 2, [0, 3]),
        (col("x") / 2.0, [0.5, 3.5]),
        (col("x").cast(pa.float64()) / lit(2), [0.5, 3.5]),
        (col("x") // 2, [0, 3]),
        (col("x") % 4, [1, 3]),
        (10 % col("x"), [0, 3]),
        (-col("x"), [-1, -7]),
        (col("x").abs().power(2), [1, 49]),
        (col("y").is_null(), [False, True]),
        (col("y").is_not_null() & (col("x") > 0), [True, False]),
        (~(col("x") == 1) | (col("y") < 1), [False, True]),
        (col("x").is_in([7, 8]), [False, True]),
        (col("x").not_in([7, 8]), [True, False]),
        (col("x") != 7, [True, False]),
        (col("s").str.upper(), [" AB", "CD"]),
        (col("s").str.strip(), ["ab", "Cd"]),
        (col("s").str.lstrip(" a"), ["b", "Cd"]),
        (col("s").str.contains("b"), [True, False]),
        (col("s") + "!", [" ab!", "Cd!"]),
        (col("s").str.replace("b", "z").str.len(), [3, 2]),
        (col("l").list.len(), [2, 1]),
        (col("l").list.get(0), [1, 3]),
        (col("t").dt.year(), [2024, 2025]),
        (col("t").dt.strftime("%d"), ["06", "02"]),
        (lit("same"), ["same", "same"]),
        ((col("x") + 0.4).round().alias("q"), [1.0, 7.0]),
    ],
    ids=repr,
)
def test_values(expression: Expr, values: list[Any]) -> None:
    dataset = lockstep.data.from_items(ROWS).with_column("z", expression)
    assert dataset.schema().names[-1] == "z"
    assert column(dataset, "z") == values
    assert column(pickle.loads(pickle.dumps(dataset)), "z") == values


def test_a_column_is_replaced_in_its_place() -> None:
    dataset = lockstep.data.from_items(ROWS).with_column("x", col("x") + 1)
    assert dataset.columns() == ["x", "y", "s", "l", "t"]
    assert column(dataset, "x") == [2, 8]
    assert dataset.select_columns(["s", "x"]).take(1) == [{"s": " ab", "x": 2}]


def test_only_needed_rows_are_computed_and_counts_are_known() -> None:
    dataset = blocks(100).with_column("y", col("id") * 2)
    assert dataset.count() == 100
    assert dataset.limit(2).take_all() == [{"id": 0, "y": 0}, {"id": 1, "y": 2}]


def test_filters() -> None:
    dataset = blocks(10)
    assert column(dataset.filter(expr=(col("id") > 3) & (col("id") < 6))) == [4, 5]
    assert column(dataset.filter(col("id").is_in([1, 9]))) == [1, 9]

    @udf(pa.bool_())
    def odd(values: pa.Array) -> pa.Array:
        return pc.equal(pc.bit_wise_and(values, 1), 1)

    assert column(dataset.filter(expr=odd(col("id")))) == [1, 3, 5, 7, 9]


def test_functions_of_the_user() -> None:
    @udf(return_dtype=DataType.int32())
    def both(left: pa.Array, right: pa.Array, more: int = 0) -> Any:
        return pc.add(pc.add(left, right), more)

    @udf(return_dtype=DataType.float64())
    class Plus:
        def __init__(self, offset: float) -> None:
            self.offset = offset

        def __call__(self, values: pa.Array) -> Any:
            return [value.as_py() + self.offset for value in values]

    dataset = blocks(3).with_column("a", both(col("id"), col("id") * 2, more=1))
    dataset = dataset.with_column("b", Plus(0.5)(col("a")) * 2)
    assert dataset.take_all() == [
        {"id": 0, "a": 1, "b": 3.0},
        {"id": 1, "a": 4, "b": 9.0},
        {"id": 2, "a": 7, "b": 15.0},
    ]
    assert dataset.schema().field("a").type == pa.int32()


@pytest.mark.parametrize("expression", [col("x"), col("x").cast(pa.float64()), col("x").alias("q")])
def test_a_column_that_is_another_is_not_written_with_it(tmp_path: Path, expression: Expr) -> None:
    pq.write_table(pa.table({"x": [0.0, 1.0]}), tmp_path / "a.parquet")
    dataset = lockstep.data.read_parquet(tmp_path).with_column("y", expression)

    def add(batch: dict[str, Any]) -> dict[str, Any]:
        batch["x"] += 1
        return batch

    expected = [{"x": 1.0, "y": 0.0}, {"x": 2.0, "y": 1.0}]
    assert dataset.map_batches(add).take_all() == expected
    assert dataset.map_batches(add, processes=True, concurrency=1).take_all() == expected
    (batch,) = dataset.iter_torch_batches(batch_size=2)
    assert add(batch)["y"].tolist() == [0.0, 1.0]


def test_errors() -> None:
    with pytest.raises(KeyError, match=r"col\('q'\): there is no such column; there are id"):
        blocks(3).with_column("y", col("q"))
    with pytest.raises(TypeError, match=r"give an expression, such as col\('x'\) \+ 1"):
        blocks(3).with_column("y", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="combine expressions with &"):
        bool(col("x") > 1 and col("y") > 1)
    with pytest.raises(AttributeError, match=r"\.str has no 'shout'; it has len"):
        col("x").str.shout()
    with pytest.raises(AttributeError, match="no 'sqroot'"):
        col("x").sqroot()
    with pytest.raises(ValueError, match=r"utf8_upper\(col\('id'\)\) cannot be computed"):
        blocks(3).with_column("y", col("id").str.upper())
    with pytest.raises(ValueError, match="returned 1 values for 3 rows"):
        blocks(3, 1).with_column("y", udf()(lambda values: [1])(col("id"))).take_all()


def test_elements_of_lists_structs_maps_and_arrays() -> None:
    maps = pa.array([[("a", 1), ("b", 2)], None, []], pa.map_(pa.string(), pa.int64()))
    table = pa.table(
        {
            "l": [[3, None, 1], [2], []],
            "s": [{"x": 1}, {"x": 2}, None],
            "m": maps,
            "f": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
        }
    )
    made = (
        lockstep.data.from_arrow(table)
        .with_column("field", col("s").struct["x"])
        .with_column("rest", col("l").list[1:])
        .with_column("sorted", col("l").list.sort(order="descending"))
        .with_column("keys", col("m").map.keys())
        .with_column("values", col("m").map.values())
        .with_column("list", col("f").arr.to_list())
        .to_arrow()
    )
    assert made["field"].to_pylist() == [1, 2, None]
    assert made["rest"].to_pylist() == [[None, 1], [], []]
    assert made["sorted"].to_pylist() == [[3, 1, None], [2], []]
    assert made["keys"].to_pylist() == [["a", "b"], None, []]
    assert made["values"].to_pylist() == [[1, 2], None, []]
    assert made["list"].type == pa.list_(pa.int64())
    first = lockstep.data.from_arrow(table).limit(2).with_column("y", col("l").list[0])
    assert first.to_arrow()["y"].to_pylist() == [3, 2]
    with pytest.raises(ValueError, match="no map"):
        lockstep.data.from_arrow(table).with_column("k", col("l").map.keys()).take()
    with pytest.raises(TypeError, match=r"only .list and .struct"):
        col("m").map["a"]
    with pytest.raises(TypeError, match="computed in Python"):
        col("m").map.keys().to_pyarrow()


def test_a_filter_may_be_computed_in_python() -> None:
    maps = pa.array([[("a", 1)], [("b", 2), ("c", 3)], None], pa.map_(pa.string(), pa.int64()))
    dataset = lockstep.data.from_arrow(pa.table({"id": [0, 1, 2], "m": maps}))
    for kept in (
        dataset.filter(expr=col("m").map.keys().list.len() == 1),
        dataset.filter(col("m").map.keys().list.len() == 1),
    ):
        assert kept.to_arrow()["id"].to_pylist() == [0]
        assert kept.schema(fetch_if_missing=False).names == ["id", "m"]
    with pytest.raises(KeyError, match="there is no such column"):
        dataset.filter(expr=col("none").map.keys().list.len() == 1)


NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["1.0 2.0 3.0 nan None", None, "", "4.0 5.0"]),
        ({"order": "descending"}, ["3.0 2.0 1.0 nan None", None, "", "5.0 4.0"]),
        ({"null_placement": "at_start"}, ["None nan 1.0 2.0 3.0", None, "", "4.0 5.0"]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.large_list(pa.float32())], ids=repr)
def test_lists_are_sorted(
    options: dict[str, str], expected: list[str | None], kind: pa.DataType
) -> None:
    rows = [[0.0], [3.0, NAN, None, 1.0, 2.0], None, [], [5.0, 4.0]]
    whole = pa.array(rows, kind)
    lists = pa.chunked_array([whole[1:3], whole[3:3], whole[3:]])  # sliced, and one chunk empty
    made = col("l").list.sort(**options).evaluate(pa.table({"l": lists}))
    assert made.type == kind
    text = [None if row is None else " ".join(map(str, row)) for row in made.to_pylist()]
    assert text == expected


def test_lists_of_other_types_are_sorted() -> None:
    fixed = pa.list_(pa.int64(), 2)
    table = pa.table(
        {
            "fixed": pa.array([[2, 1], None, [None, 3]], fixed),
            "text": [["b", "a"], ["c"], None],
            "flags": [[True, False, True], [], None],
        }
    )
    made = col("fixed").list.sort().evaluate(table)
    assert (made.type, made.to_pylist()) == (fixed, [[1, 2], None, [3, None]])
    assert col("text").list.sort().evaluate(table).to_pylist() == [["a", "b"], ["c"], None]
    flags = col("flags").list.sort().evaluate(table).to_pylist()
    assert flags == [[False, True, True], [], None]
    none = col("text").list.sort().evaluate(table.slice(0, 0))
    assert none.to_pylist() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "desc"}, r"col\('l'\).* order='desc': give 'ascending' or 'descending'"),
        ({"null_placement": "first"}, "null_placement='first': give 'at_end' or 'at_start'"),
    ],
    ids=repr,
)
def test_an_unknown_way_to_sort_lists_is_refused(options: dict[str, str], message: str) -> None:
    expression = col("l").list.sort(**options)
    with pytest.raises(ValueError, match=message):
        expression.evaluate(pa.table({"l": [[1]]}))


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.string()), pa.list_(pa.int64(), 2)], ids=repr
)
def test_a_list_that_is_too_short_has_no_element(kind: pa.DataType) -> None:
    fixed = pa.types.is_fixed_size_list(kind)
    rows = pa.array([[9, 9], [1, 2], None, [3, 4] if fixed else []], pa.list_(pa.int64()))
    table = pa.table({"l": rows.cast(kind)}).slice(1)
    first = col("l").list[0].evaluate(table)
    assert first.type == kind.value_type
    assert first.cast(pa.int64()).to_pylist() == [1, None, 3 if fixed else None]
    assert col("l").list.get(index=2).evaluate(table).to_pylist() == [None, None, None]
    picked = lockstep.data.from_arrow(table).filter(expr=col("l").list[1].is_not_null())
    assert picked.count() == 1 + fixed


@pytest.mark.parametrize(
    "take",
    [
        lambda lists: lists[-1],
        lambda lists: lists[-2:],
        lambda lists: lists[:-1],
        lambda lists: lists.get(-1),
        lambda lists: lists.slice(0, -1),
    ],
)
def test_places_from_the_end_of_a_list_are_refused(take: Any) -> None:
    with pytest.raises(ValueError, match=r"-\d counts from the end of a list; use 0 or more"):
        take(col("l").list)
