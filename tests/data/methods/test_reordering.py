"""Slices, unions, shuffles, samples, splits and sorts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lockstep.data
from tests.data.datasets import blocks, column


def test_limit() -> None:
    assert column(blocks(20).limit(7)) == list(range(7))
    assert blocks(20).limit(7).count() == 7
    assert blocks(5).limit(70).count() == 5
    assert (blocks(5).limit(0).count(), blocks(5).limit(0).columns()) == (0, ["id"])
    few = blocks(20).filter(lambda row: row["id"] % 3 == 0).limit(3)
    assert column(few.map(lambda row: {"id": row["id"] + 1})) == [1, 4, 7]
    assert column(few.filter(lambda row: row["id"] > 0)) == [3, 6]
    with pytest.raises(ValueError, match=r"limit\(-1\)"):
        blocks(5).limit(-1)


def test_a_limit_reads_no_more_than_it_needs() -> None:
    seen = []

    def note(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row["id"])
        return row

    assert blocks(100, 20).map(note).limit(3).count() == 3
    assert seen == []
    assert blocks(100, 20).map(note).take(3) == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert len(seen) == 5


def test_union() -> None:
    both = blocks(3).union(blocks(2), blocks(1))
    assert column(both) == [0, 1, 2, 0, 1, 0]
    mixed = blocks(3).map(lambda row: row).union(blocks(2).filter(lambda row: row["id"]))
    assert column(mixed) == [0, 1, 2, 1]
    shuffled = blocks(20).random_shuffle(seed=1).union(blocks(3))
    assert column(shuffled)[20:] == [0, 1, 2]
    assert sorted(column(shuffled)[:20]) == list(range(20)) != column(shuffled)[:20]
    whole = shuffled.random_shuffle(seed=2)
    assert sorted(column(whole)) == sorted([*range(20), *range(3)])
    with pytest.raises(TypeError, match="give datasets"):
        blocks(3).union([1])  # type: ignore[arg-type]


def test_a_union_of_different_columns() -> None:
    parts = [
        lockstep.data.from_items([{"x": 1, "y": "a", "z": None}]),
        lockstep.data.from_items([{"z": 0.5, "x": None}]),
        lockstep.data.from_items([{"y": None, "x": 3}]),
    ]
    rows: list[dict[str, Any]] = [
        {"x": 1, "y": "a", "z": None},
        {"x": None, "y": None, "z": 0.5},
        {"x": 3, "y": None, "z": None},
    ]
    both = parts[0].union(*parts[1:])
    assert both.schema() == pa.schema([("x", pa.int64()), ("y", pa.string()), ("z", pa.float64())])
    assert both.take_all() == rows
    assert both.select_columns(["z"]).take_all() == [{"z": row["z"]} for row in rows]
    assert both.filter(expr="z > 0").count() == 1
    assert sorted(both.random_shuffle(seed=1).take_all(), key=str) == sorted(rows, key=str)
    shards = both.prepare(2, equal=False)
    found = [row for rank in range(2) for row in shards.shard(rank).iter_rows()]
    assert found == rows
    # Where a function decides the columns, they are known only when the rows are there.
    mapped = parts[0].union(*(part.map(lambda row: row) for part in parts[1:]))
    (batch,) = mapped.iter_batches(batch_size=3)
    np.testing.assert_equal(batch["x"], [1, np.nan, 3])
    np.testing.assert_equal(batch["z"], [np.nan, 0.5, np.nan])
    assert batch["y"].tolist() == ["a", None, None]
    assert mapped.materialize().take_all() == rows


def test_a_union_has_one_type_a_column() -> None:
    halves = lockstep.data.from_items([{"id": 0.5}, {"id": 1.5}])
    both = blocks(2).union(halves, blocks(1).map(lambda row: row).materialize())
    assert [str(field.type) for field in both.schema()] == ["double"]
    assert {b["id"].dtype.kind for b in both.iter_batches(batch_size=1)} == {"f"}
    assert column(both) == [0, 1, 0.5, 1.5, 0]
    with pytest.raises(ValueError, match="whose column 'id' is int64 and string"):
        blocks(2).union(lockstep.data.from_items([{"id": "a"}])).prepare(1)


def test_a_union_with_nothing() -> None:
    nothing = lockstep.data.from_items([])
    for both in (nothing.union(blocks(3)), blocks(3).union(nothing)):
        assert (column(both), both.columns()) == ([0, 1, 2], ["id"])
    assert nothing.union(nothing).count() == 0
    with pytest.raises(TypeError, match=r"union\(\[1\]\): give datasets"):
        blocks(3).union([1])  # type: ignore[arg-type]


def test_rows_with_different_columns() -> None:
    odd = blocks(20, 4).map(lambda row: {"id": 1} if row["id"] < 7 else {"id": 1, "x": 2})
    assert odd.take_all()[-1] == {"id": 1, "x": 2}
    (batch,) = odd.iter_batches(batch_size=20)
    np.testing.assert_equal(batch["x"], [np.nan] * 7 + [2.0] * 13)
    (batch,) = odd.iter_torch_batches(batch_size=20)
    assert batch["x"].isnan().sum() == 7


def test_zip() -> None:
    other = blocks(4, 1).rename_columns({"id": "n"})
    zipped = blocks(4).zip(other, blocks(4))
    assert zipped.take(2)[1] == {"id": 1, "n": 1, "id_1": 1}
    with pytest.raises(ValueError, match="datasets of 4 and 3 rows"):
        blocks(4).zip(blocks(3)).count()
    with pytest.raises(TypeError, match=r"zip\(3\): give datasets"):
        blocks(4).zip(3)  # type: ignore[arg-type]


def test_sort() -> None:
    dataset = lockstep.data.from_items([{"a": i % 3, "b": i} for i in range(6)])
    assert column(dataset.sort("a"), "b") == [0, 3, 1, 4, 2, 5]
    assert column(dataset.sort(["a", "b"], descending=[True, False]), "b") == [2, 5, 1, 4, 0, 3]
    assert column(dataset.sort("b", descending=True), "b") == [5, 4, 3, 2, 1, 0]
    with pytest.raises(KeyError, match="sort: there is no column 'x'; there are a, b"):
        dataset.sort("x").take_all()
    with pytest.raises(ValueError, match="one direction, or one for each"):
        dataset.sort("a", descending=[True, False])
    assert dataset.flat_map(lambda row: []).sort("b").take_all() == []


def test_repartition() -> None:
    dataset = blocks(20, 1).repartition(6)
    assert dataset.num_blocks() == 6 - 1  # of four rows each
    assert column(dataset) == list(range(20))
    assert blocks(20, 4).repartition(target_num_rows_per_block=2).num_blocks() == 12
    assert sorted(column(dataset.repartition(3, shuffle=True))) == list(range(20))
    with pytest.raises(ValueError, match="num_blocks or target_num_rows_per_block"):
        dataset.repartition()
    with pytest.raises(ValueError, match=r"repartition\(0\)"):
        dataset.repartition(0)


def test_shuffle_is_another_one_in_each_epoch() -> None:
    dataset = blocks(30).random_shuffle(seed=3)
    epochs = [
        [int(i) for b in dataset.iter_batches(batch_size=7) for i in b["id"]] for _ in range(3)
    ]
    assert all(sorted(epoch) == list(range(30)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert column(dataset) == epochs[0]
    assert column(blocks(30).random_shuffle(seed=4)) != epochs[0]
    mapped = dataset.map(lambda row: {"id": row["id"] * 2})
    assert column(mapped) == [i * 2 for i in epochs[0]]
    with pytest.raises(ValueError, match="window='some'"):
        dataset.random_shuffle(window="some")
    with pytest.raises(TypeError, match="seed='x'"):
        dataset.random_shuffle(seed="x")  # type: ignore[arg-type]


def test_a_windowed_shuffle_moves_blocks_and_permutes_windows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a", row_group_size=10)
    dataset = lockstep.data.read_parquet(tmp_path / "a").random_shuffle(seed=1, window=50)
    rows = column(dataset)
    assert sorted(rows) == list(range(1000))
    windows = [rows[start : start + 50] for start in range(0, 1000, 50)]
    groups = [{row // 10 for row in window} for window in windows]
    assert all(len(group) == 5 for group in groups)
    assert any(max(group) - min(group) > 5 for group in groups)
    assert all(window != sorted(window) for window in windows)
    blocks_only = column(dataset.randomize_block_order(seed=1))
    assert sorted(blocks_only) == list(range(1000)) != blocks_only
    assert all(blocks_only[i] + 1 == blocks_only[i + 1] for i in range(999) if (i + 1) % 10)


def test_slices_of_something_shuffled() -> None:
    dataset = blocks(30).random_shuffle(seed=3)
    rows = column(dataset)
    assert column(dataset.limit(5)) == rows[:5]
    assert [i for part in dataset.split(4) for i in column(part)] == rows
    assert column(dataset.sort("id")) == list(range(30))


def test_sample() -> None:
    chosen = blocks(1000).random_sample(0.3, seed=1)
    rows = column(chosen)
    assert chosen.count() == len(rows)
    assert 240 < len(rows) < 360
    assert rows == sorted(set(rows))
    assert column(chosen) == rows  # every time
    assert column(blocks(1000).random_sample(0.3, seed=2)) != rows
    assert blocks(10).random_sample(0).count() == 0
    assert blocks(10).random_sample(1).count() == 10
    with pytest.raises(ValueError, match=r"random_sample\(2\)"):
        blocks(10).random_sample(2)


def test_train_test_split() -> None:
    train, test = blocks(10).train_test_split(0.2)
    assert (column(train), column(test)) == (list(range(8)), [8, 9])
    train, test = blocks(10).train_test_split(3)
    assert (train.count(), column(test)) == (7, [7, 8, 9])
    for size, number in ((0.25, 250), (100, 100)):
        train, test = blocks(1000).train_test_split(size, shuffle=True, seed=5)
        assert (train.count(), test.count()) == (1000 - number, number)
        assert sorted(column(train) + column(test)) == list(range(1000))
        assert column(test) != sorted(column(test))
        again = blocks(1000).train_test_split(size, shuffle=True, seed=5)[1]
        assert column(again) == column(test)
    plan = train.map(lambda row: row).prepare(3, equal=False)
    shards = [plan.shard(rank) for rank in range(3)]
    seen = [int(i) for shard in shards for b in shard.iter_batches() for i in b["id"]]
    assert sorted(seen) == sorted(column(train))
    for wrong in (0.0, 1.0, 1.5, 0, 1000, -1):
        with pytest.raises(ValueError, match="train_test_split"):
            blocks(1000).train_test_split(wrong)
    with pytest.raises(TypeError, match="give a fraction or a number"):
        blocks(10).train_test_split("0.2")  # type: ignore[arg-type]


def test_splits() -> None:
    assert [column(part) for part in blocks(7).split(3)] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [column(part) for part in blocks(7).split(3, equal=True)] == [[0, 1], [2, 3], [4, 5]]
    assert [part.count() for part in blocks(1).split(2, equal=True)] == [0, 0]
    parts = blocks(7).split_at_indices([2, 5, 50])
    assert [column(part) for part in parts] == [[0, 1], [2, 3, 4], [5, 6], []]
    assert [p.count() for p in blocks(10).split_proportionately([0.2, 0.5])] == [2, 5, 3]
    with pytest.raises(ValueError, match=r"split\(0\)"):
        blocks(7).split(0)
    with pytest.raises(ValueError, match="in ascending order"):
        blocks(7).split_at_indices([3, 1])
    with pytest.raises(ValueError, match="sum up to less"):
        blocks(7).split_proportionately([0.5, 0.5])
    shards = blocks(10).streaming_split(2, equal=True)
    assert [shard.count() for shard in shards] == [5, 5]


def test_joins() -> None:
    left = lockstep.data.from_items([{"id": i, "x": i} for i in range(4)])
    right = lockstep.data.from_items([{"key": i, "y": i * 10} for i in (1, 3, 5)])
    inner = left.join(right, "inner", 2, on="id", right_on="key")
    assert sorted(inner.take_all(), key=lambda row: row["id"]) == [
        {"id": 1, "x": 1, "y": 10},
        {"id": 3, "x": 3, "y": 30},
    ]
    assert inner.num_blocks() == 2
    outer = left.join(right.rename_columns({"key": "id"}), "full_outer")
    assert sorted(column(outer)) == [0, 1, 2, 3, 5]
    anti = left.join(right, "left_anti", on=("id",), right_on=("key",))
    assert sorted(column(anti)) == [0, 2]
    assert left.limit(0).join(right, "inner", on="id", right_on="key").take_all() == []
    with pytest.raises(ValueError, match="both sides have a column 'x'"):
        left.join(left, "inner").take_all()
    both = left.join(left, "inner", left_suffix="_l", right_suffix="_r").take(1)
    assert sorted(both[0]) == ["id", "x_l", "x_r"]
    with pytest.raises(ValueError, match="join_type='cross'"):
        left.join(right, "cross")
    with pytest.raises(ValueError, match="as many columns"):
        left.join(right, "inner", on=["id"], right_on=["key", "y"])
    with pytest.raises(KeyError, match="on the right"):
        left.join(right, "inner", on="id").take_all()


def test_a_join_gives_no_two_columns_one_name() -> None:
    left = lockstep.data.from_items([{"id": 1, "a": "left"}])
    right = lockstep.data.from_items([{"rid": 1, "id": 99}])
    with pytest.raises(ValueError, match=r"would be named 'id'.*left_suffix or right_suffix"):
        left.join(right, "inner", on="id", right_on="rid").take_all()
    named = left.join(right, "inner", on="id", right_on="rid", right_suffix="_r")
    assert named.take_all() == [{"id": 1, "a": "left", "id_r": 99}]
    # The key of the left is not in the result of a right join, and a left column may be named so.
    other = lockstep.data.from_items([{"id": 1, "rid": 5}])
    with pytest.raises(ValueError, match="would be named 'rid'"):
        other.join(right, "right_outer", on="id", right_on="rid").take_all()
    named = other.join(right, "right_outer", on="id", right_on="rid", left_suffix="_l")
    assert named.take_all() == [{"rid_l": 5, "rid": 1, "id": 99}]
    with pytest.raises(ValueError, match="would be named 'a_x'"):
        left.join(left, "inner", left_suffix="_x", right_suffix="_x").take_all()
    taken = lockstep.data.from_items([{"id": 1, "a": 1, "a_r": 2}])
    with pytest.raises(ValueError, match="would be named 'a_r'"):
        taken.join(left, "inner", right_suffix="_r").take_all()


@pytest.mark.parametrize(
    ("join_type", "expected"),
    [
        ("inner", [(2, [2], "x")]),
        ("left_outer", [(1, [1], None), (2, [2], "x"), (3, None, None)]),
        ("right_outer", [(2, [2], "x"), (4, None, "z")]),
        ("full_outer", [(1, [1], None), (2, [2], "x"), (3, None, None), (4, None, "z")]),
        ("left_semi", [(2, [2])]),
        ("right_semi", [(2, "x")]),
        ("left_anti", [(1, [1]), (3, None)]),
        ("right_anti", [(4, "z")]),
    ],
)
def test_a_join_of_lists_by_keys_of_two_types(join_type: str, expected: list[Any]) -> None:
    left = lockstep.data.from_arrow(pa.table({"id": [1, 2, 3], "a": [[1], [2], None]}))
    right = lockstep.data.from_arrow(
        pa.table({"key": pa.array([2, 4], pa.int32()), "b": ["x", "z"]})
    )
    table = left.join(right, join_type, on="id", right_on="key").to_arrow()
    key = "key" if join_type.startswith("right") else "id"
    table = table.select([key, *(name for name in ("a", "b") if name in table.column_names)])
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert sorted(rows, key=lambda row: row[0]) == expected


def test_a_join_keeps_tensors_structs_and_nulls() -> None:
    left = lockstep.data.from_items(
        [{"id": i, "t": np.full((2, 2), i), "s": {"n": i}, "none": None} for i in range(3)]
    )
    right = lockstep.data.from_items([{"id": 1, "r": np.arange(2)}, {"id": 2, "r": np.arange(3)}])
    rows = sorted(left.join(right, "left_outer").take_all(), key=lambda row: row["id"])
    assert [row["t"].tolist() for row in rows] == [[[i, i], [i, i]] for i in range(3)]
    assert [(row["s"], row["none"]) for row in rows] == [({"n": i}, None) for i in range(3)]
    assert rows[0]["r"] is None
    assert [list(row["r"]) for row in rows[1:]] == [[0, 1], [0, 1, 2]]
    text = pa.table({"id": pa.array(["a", "b"], pa.large_string()), "x": [1, 2]})
    words = pa.table({"id": pa.array(["b"]).dictionary_encode(), "y": [3]})
    mixed = lockstep.data.from_arrow(text).join(lockstep.data.from_arrow(words), "inner")
    assert mixed.take_all() == [{"id": "b", "x": 2, "y": 3}]
    with pytest.raises(ValueError, match=r"'id' is int64 on the left, and 'id' is .*string on"):
        left.join(lockstep.data.from_items([{"id": "1"}]), "inner").take_all()
    lists = lockstep.data.from_items([{"id": [1]}])
    with pytest.raises(ValueError, match=r"cannot compare the values of the key 'id' \(list"):
        lists.join(lists, "inner").take_all()


def test_the_arguments_of_a_join_are_checked() -> None:
    data = lockstep.data.range(4)
    assert data.join(data, "inner", 3).num_blocks() == 3
    assert data.join(data, "inner", 9).count() == 4
    for wrong in (0, -1, "id"):
        with pytest.raises(ValueError, match=rf"num_partitions={wrong!r}\).*give 1 or more"):
            data.join(data, "inner", wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"join\(3\): give datasets"):
        data.join(3, "inner")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"join\(on=\[\], .*name one or more columns"):
        data.join(data, "inner", on=[])
    with pytest.raises(TypeError, match=r"join\(on=3\): give the name of a column"):
        data.join(data, "inner", on=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"join\(right_on=\[3\]\): give the name of a column"):
        data.join(data, "inner", right_on=[3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"join\(right_suffix=3\): give a string"):
        data.join(data, "inner", right_suffix=3)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="the dataset has no columns"):
        data.join(lockstep.data.from_items([]), "inner").take_all()


def test_how_a_dataset_was_made_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lockstep.data.range(3).limit(2).explain()
    assert capsys.readouterr().out == "+- limit(2)\n   +- range(3)\n"
