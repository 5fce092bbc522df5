"""Transforms, arrangements, aggregates and outputs do what they say, and say what is wrong."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import lockstep.data
from lockstep.data import Dataset
from lockstep.errors import StorageError


def ids(dataset: Dataset, name: str = "id") -> list[Any]:
    return [row[name] for row in dataset.take_all()]


def blocks(n: int, count: int = 4) -> Dataset:
    return lockstep.data.range(n, override_num_blocks=count)


class TestMapBatches:
    @pytest.mark.parametrize(
        "batch_format", ["numpy", "default", "pandas", "pyarrow", "torch", None]
    )
    def test_formats(self, batch_format: str | None) -> None:
        def double(batch: Any) -> Any:
            if isinstance(batch, pa.Table):
                return pa.table({"id": pc.multiply(batch["id"], 2)})
            assert isinstance(batch, pd.DataFrame if batch_format == "pandas" else dict)
            return {"id": batch["id"] * 2}

        doubled = blocks(10).map_batches(double, batch_format=batch_format)
        assert ids(doubled) == list(range(0, 20, 2))

    def test_batch_sizes(self) -> None:
        seen = []

        def note(batch: dict[str, Any]) -> dict[str, Any]:
            seen.append(len(batch["id"]))
            return batch

        assert blocks(20, 2).map_batches(note, batch_size=4).to_numpy("id").tolist() == [*range(20)]
        assert seen == [4, 4, 2, 4, 4, 2]
        with pytest.raises(ValueError, match="batch_size=0"):
            blocks(20).map_batches(note, batch_size=0)
        for size in (None, "auto", "default"):
            del seen[:]
            assert blocks(20, 2).map_batches(note, batch_size=size).count() == 20
            assert seen == [10, 10]

    def test_arguments(self) -> None:
        def add(batch: dict[str, Any], one: int, *, two: int) -> dict[str, Any]:
            return {"id": batch["id"] + one + two}

        assert ids(blocks(3).map_batches(add, fn_args=[1], fn_kwargs={"two": 10})) == [11, 12, 13]

    def test_classes_are_made_once(self) -> None:
        made = []

        class Adder:
            def __init__(self, by: int, *, more: int = 0) -> None:
                made.append(self)
                self.by = by + more

            def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
                return {"id": batch["id"] + self.by}

        added = blocks(8).map_batches(
            Adder, fn_constructor_args=[1], fn_constructor_kwargs={"more": 1}
        )
        assert made == []
        assert ids(added) == list(range(2, 10))
        assert ids(added) == list(range(2, 10))
        assert len(made) == 1
        with pytest.raises(ValueError, match=r"fn_constructor_args and .* are for a class"):
            blocks(8).map_batches(lambda batch: batch, fn_constructor_args=[1])
        with pytest.raises(TypeError, match="Objects of int cannot be called"):
            blocks(8).map_batches(int)
        with pytest.raises(TypeError, match="3 cannot be called"):
            blocks(8).map_batches(3)  # type: ignore[arg-type]

    def test_concurrency(self) -> None:
        together = threading.Barrier(3)

        class Meeting:
            def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
                together.wait(30)  # passes only if three are called at once
                return {"id": batch["id"], "who": np.array([id(self)] * len(batch["id"]))}

        dataset = blocks(12, 1).map_batches(Meeting, batch_size=4, concurrency=3)
        rows = dataset.take_all()
        assert [row["id"] for row in rows] == list(range(12))
        assert len({row["who"] for row in rows}) == 3
        together.reset()
        assert len(blocks(12, 1).map_batches(Meeting, concurrency=(1, 3)).take_all()) == 12
        for pool in (
            lockstep.data.ActorPoolStrategy(size=3),
            lockstep.data.ActorPoolStrategy(min_size=1, max_size=3, initial_size=2),
            lockstep.data.TaskPoolStrategy(size=3),
        ):
            together.reset()
            assert len(blocks(12, 1).map_batches(Meeting, compute=pool).take_all()) == 12
        with pytest.raises(ValueError, match="concurrency=0"):
            blocks(12).map_batches(Meeting, concurrency=0)
        with pytest.raises(TypeError, match="compute=3: give an ActorPoolStrategy"):
            blocks(12).map_batches(Meeting, compute=3)

    def test_generators(self) -> None:
        def twice(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
            yield batch
            yield batch

        assert ids(blocks(2, 1).map_batches(twice, preserves_rows=False)) == [0, 1, 0, 1]

    def test_tensors(self) -> None:
        def images(batch: dict[str, Any]) -> dict[str, Any]:
            return {"image": np.ones((len(batch["id"]), 2, 3)) * batch["id"][:, None, None]}

        dataset = blocks(6).map_batches(images)
        assert dataset.take_batch(6)["image"].shape == (6, 2, 3)
        assert dataset.take_all()[5]["image"].tolist() == [[5.0] * 3] * 2
        sums = dataset.map_batches(lambda b: {"sum": b["image"].sum(axis=(1, 2))})
        assert ids(sums, "sum") == [0, 6, 12, 18, 24, 30]
        frame = dataset.to_pandas()
        assert frame["image"][1].shape == (2, 3)
        again = dataset.map_batches(lambda frame: frame, batch_format="pandas")
        assert again.take_batch(6)["image"].shape == (6, 2, 3)

    def test_what_cannot_be_a_tensor(self) -> None:
        dataset = lockstep.data.from_items([{"x": 1, "s": "a"}])
        with pytest.raises(TypeError, match=r"Column 's' of type str .* cannot be a tensor"):
            dataset.map_batches(lambda batch: batch, batch_format="torch").take(1)

    def test_a_batch_can_be_written_to(self) -> None:
        def in_place(batch: dict[str, Any]) -> dict[str, Any]:
            batch["id"] *= 2
            return batch

        table = pa.table({"id": np.arange(3)})
        dataset = lockstep.data.from_arrow(table)
        with pytest.raises(ValueError, match="read-only"):
            dataset.map_batches(in_place).take_all()
        assert ids(dataset.map_batches(in_place, zero_copy_batch=False)) == [0, 2, 4]
        assert ids(dataset) == [0, 1, 2]

    @pytest.mark.parametrize(
        ("result", "message"),
        [
            (3, r"map_batches\(.*\) returned int; return a dict of arrays"),
            ({"x": 3}, r"returned 3 for column 'x'; return an array"),
            ({"x": "abc"}, r"returned 'abc' for column 'x'"),
            ({"x": [1], "y": [1, 2]}, r"columns of different lengths: \{'x': 1, 'y': 2\}"),
            ({"x": ["\ud800"]}, r"column 'x': 'utf-8' codec can't encode"),
            ({"x": np.array(3)}, r"column 'x': a column cannot be the single value"),
        ],
    )
    def test_what_is_no_batch(self, result: Any, message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            blocks(4).map_batches(lambda batch: result).take_all()

    def test_a_users_error_is_theirs(self, tmp_path: Path) -> None:
        class Mine(Exception):
            pass

        def fail(batch: Any) -> Any:
            raise Mine("here")

        with pytest.raises(Mine, match="here"):
            blocks(4).map_batches(fail).take_all()
        pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
        with pytest.raises(Mine) as caught:
            list(lockstep.data.read_parquet(tmp_path).map_batches(fail).iter_batches())
        notes = getattr(caught.value, "__notes__", None)
        assert notes is None or notes == [f"(in rows of {tmp_path / 'a.parquet'})"]

    def test_a_number_of_rows_that_changes(self) -> None:
        def half(batch: dict[str, Any]) -> dict[str, Any]:
            return {"id": batch["id"][::2]}

        dataset = blocks(20).map_batches(half)
        expected = [0, 2, 4, 5, 7, 9, 10, 12, 14, 15, 17, 19]
        assert ids(dataset) == expected  # only looked at: any number is fine
        assert dataset.count() == 12
        assert [i for b in dataset.iter_batches(batch_size=5) for i in b["id"].tolist()] == expected
        message = r"returned 3 rows for 5; give map_batches preserves_rows=False"
        with pytest.raises(ValueError, match=message):
            list(dataset.prepare(2).shard(0).iter_batches())
        with pytest.raises(ValueError, match=r"rows for .*; give map_batches preserves_rows=False"):
            dataset.limit(3).take_all()
        said = blocks(20).map_batches(half, preserves_rows=False)
        assert said.count() == 12
        plan = said.prepare(3)
        assert (
            sorted(
                i for r in range(3) for b in plan.shard(r).iter_batches() for i in b["id"].tolist()
            )
            == expected
        )
        assert ids(said.limit(4)) == expected[:4]

    def test_rays_name_for_a_number_of_rows_that_changes(self) -> None:
        def first(batch: dict[str, Any]) -> dict[str, Any]:
            return {"id": batch["id"][:1]}

        fewer = blocks(10, 2).map_batches(first, udf_modifying_row_count=True)
        assert fewer.prepare(2).rows == 2
        with pytest.raises(ValueError, match="returned 1 rows for"):
            blocks(10, 2).map_batches(first, udf_modifying_row_count=False).limit(9).take_all()

    def test_what_rays_scheduler_is_told(self) -> None:
        hints: dict[str, Any] = {"num_gpus": 1, "resources": {"tpu": 1}, "max_retries": 2}
        dataset = blocks(4).map_batches(lambda batch: batch, **hints).map(lambda row: row, **hints)
        dataset = dataset.flat_map(lambda row: [row], **hints).filter(lambda row: True, **hints)
        dataset = dataset.add_column("x", lambda frame: frame["id"], **hints)
        dataset = dataset.select_columns(["id", "x"], **hints).drop_columns("x", **hints)
        assert ids(dataset.rename_columns({"id": "y"}, **hints), "y") == [0, 1, 2, 3]
        assert sorted(ids(blocks(4).random_shuffle(seed=1, **hints))) == [0, 1, 2, 3]
        with pytest.raises(TypeError, match=r"random_shuffle\(\) has no argument 'sede'"):
            blocks(4).random_shuffle(sede=1)
        with pytest.raises(TypeError, match=r"map_batches\(\) has no argument 'batchsize'"):
            blocks(4).map_batches(lambda batch: batch, batchsize=3)
        with pytest.raises(TypeError, match=r"drop_columns\(\) has no argument 'axis'"):
            blocks(4).drop_columns("id", axis=1)


class TestRows:
    def test_map(self) -> None:
        squares = blocks(5).map(lambda row: {"id": row["id"], "square": row["id"] ** 2})
        assert squares.take(3)[2] == {"id": 2, "square": 4}
        assert squares.columns() == ["id", "square"]
        with pytest.raises(TypeError, match=r"map\(.*\) returned 3; return a dict"):
            blocks(5).map(lambda row: 3).take_all()  # type: ignore[arg-type,return-value]

    def test_flat_map(self) -> None:
        repeated = blocks(4).flat_map(lambda row: [row] * row["id"])
        assert ids(repeated) == [1, 2, 2, 3, 3, 3]
        assert repeated.count() == 6
        assert [part.count() for part in repeated.split(2)] == [3, 3]
        with pytest.raises(TypeError, match=r"flat_map\(.*\) returned .*; return a list of dicts"):
            blocks(4).flat_map(lambda row: row).take_all()

    def test_filter(self) -> None:
        even = blocks(20).filter(lambda row: row["id"] % 2 == 0)
        assert ids(even) == list(range(0, 20, 2))
        assert even.count() == 10
        assert even.schema().names == ["id"]
        plan = even.prepare(3, equal=False)
        shares = [[int(i) for b in plan.shard(r).iter_batches() for i in b["id"]] for r in range(3)]
        assert [len(share) for share in shares] == [4, 3, 3]
        assert sum(shares, []) == list(range(0, 20, 2))  # noqa: RUF017
        with pytest.raises(ValueError, match="either a function or expr"):
            blocks(20).filter()

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("id > 16", [17, 18, 19]),
            ("2 <= id < 4 or id == 9", [2, 3, 9]),
            ("not id != 3", [3]),
            ("id in (1, 5, 50)", [1, 5]),
            ("id not in [0] and id * 2 + 1 < 6", [1, 2]),
            ("id / 2 == 4", [8, 9]),
            ("id > -1 and -id > -2", [0, 1]),
            ("id is None", []),
            ("id is not None and id - 1 < 0", [0]),
        ],
    )
    def test_filter_by_text(self, text: str, expected: list[int]) -> None:
        assert ids(blocks(20).filter(expr=text)) == expected

    @pytest.mark.parametrize(
        "text", ["id >", "id.x > 3", "open('x')", "[i for i in id]", "id ** 2"]
    )
    def test_text_that_is_no_filter(self, text: str) -> None:
        with pytest.raises(ValueError, match="The filter"):
            blocks(20).filter(expr=text)

    def test_filter_by_expression(self) -> None:
        assert ids(blocks(20).filter(expr=pc.field("id") == 7)) == [7]
        with pytest.raises(TypeError, match="7 is not a filter"):
            blocks(20).filter(expr=7)
        with pytest.raises(ValueError, match="does not fit the columns id"):
            blocks(20).filter(expr="nope > 3")

    @pytest.mark.parametrize(
        "expression",
        [
            (pc.field("b") >= 10) & (pc.field(0) >= 2),
            (pc.field(0) >= 2) & (pc.field("b") >= 10),
            pc.if_else(pc.field("b") >= 10, pc.coalesce(pc.field((0,)), pc.field("b")), 0) >= 2,
            ~pc.field("b").isin([99]) & ~(pc.field(0).cast("int8") + 0).isin([1]),
        ],
    )
    def test_an_expression_with_columns_by_position(self, expression: Any, tmp_path: Path) -> None:
        table = pa.table({"a": [1, 2, 3], "b": [30, 20, 10], "c": [5, 6, 7]})
        pq.write_table(table, tmp_path / "1.parquet")
        pq.write_table(table.select(["c", "b", "a"]), tmp_path / "2.parquet")
        kept = lockstep.data.read_parquet(tmp_path).filter(expr=expression)
        assert kept.take_all() == 2 * table.slice(1).to_pylist()
        assert ids(kept.select_columns(["c"]), "c") == [6, 7, 6, 7]
        assert kept.sum("c") == 26
        assert kept.count() == 4

    def test_a_position_counts_the_columns_that_were_chosen(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"a": [1, 2, 3], "b": [30, 20, 10]}), tmp_path / "1.parquet")
        pq.write_table(pa.table({"b": [30, 20, 10], "a": [1, 2, 3]}), tmp_path / "2.parquet")
        chosen = lockstep.data.read_parquet(tmp_path, columns=["b"])
        assert chosen.filter(expr=pc.field(0) > 15).count() == 4
        assert lockstep.data.read_parquet(tmp_path, filters=pc.field(0) > 5).count() == 0
        assert lockstep.data.read_parquet(tmp_path, filters=pc.field(0) < 5).count() == 6


class TestColumns:
    def test_add_column(self) -> None:
        dataset = blocks(4).add_column("twice", lambda frame: frame["id"] * 2)
        assert dataset.take(2)[1] == {"id": 1, "twice": 2}
        dataset = dataset.add_column("id", lambda b: b["id"] + 1, batch_format="numpy")
        assert dataset.take(1) == [{"id": 1, "twice": 0}]
        dataset = dataset.add_column("who", lambda table: "me", batch_format="pyarrow")
        assert ids(dataset, "who") == ["me"] * 4
        with pytest.raises(ValueError, match=r"add_column\('x', .*\) returned 2 values for 1 rows"):
            blocks(4).add_column("x", lambda frame: [1, 2]).take_all()

    def test_select_drop_rename(self) -> None:
        dataset = lockstep.data.from_items([{"a": 1, "b": 2, "c": 3}])
        assert dataset.select_columns(["c", "a"]).take_all() == [{"c": 3, "a": 1}]
        assert dataset.drop_columns(["b"]).take_all() == [{"a": 1, "c": 3}]
        renamed = dataset.rename_columns({"a": "x"})
        assert renamed.select_columns("x").take_all() == [{"x": 1}]
        assert dataset.rename_columns(["p", "q", "r"]).drop_columns("q").columns() == ["p", "r"]
        mapped = dataset.map_batches(lambda batch: {**batch, "d": batch["a"]})
        assert mapped.rename_columns({"d": "e"}).select_columns(["e"]).take_all() == [{"e": 1}]

    def test_names_that_do_not_fit(self) -> None:
        dataset = lockstep.data.from_items([{"a": 1, "b": 2}])
        with pytest.raises(
            KeyError, match="select_columns: there is no column 'x'; there are a, b"
        ):
            dataset.select_columns(["x"])
        with pytest.raises(KeyError, match="drop_columns: there is no column 'x'"):
            dataset.drop_columns("x")
        with pytest.raises(KeyError, match="rename_columns: there is no column 'x'"):
            dataset.rename_columns({"x": "y"})
        with pytest.raises(ValueError, match="got 1 names for 2 columns"):
            dataset.rename_columns(["x"])
        with pytest.raises(ValueError, match="several columns the name 'b'"):
            dataset.rename_columns({"a": "b"})
        with pytest.raises(ValueError, match="names the column 'a' twice"):
            dataset.select_columns(["a", "a"])
        with pytest.raises(TypeError, match="no argument 'nope'"):
            dataset.select_columns("a", nope=1)
        with pytest.raises(KeyError, match="there is no column 'x'"):
            dataset.map(lambda row: row).select_columns("x").take_all()


class TestArrangements:
    def test_limit(self) -> None:
        assert ids(blocks(20).limit(7)) == list(range(7))
        assert blocks(20).limit(7).count() == 7
        assert blocks(5).limit(70).count() == 5
        assert (blocks(5).limit(0).count(), blocks(5).limit(0).columns()) == (0, ["id"])
        few = blocks(20).filter(lambda row: row["id"] % 3 == 0).limit(3)
        assert ids(few.map(lambda row: {"id": row["id"] + 1})) == [1, 4, 7]
        assert ids(few.filter(lambda row: row["id"] > 0)) == [3, 6]
        with pytest.raises(ValueError, match=r"limit\(-1\)"):
            blocks(5).limit(-1)

    def test_a_limit_reads_no_more_than_it_needs(self) -> None:
        seen = []

        def note(row: dict[str, Any]) -> dict[str, Any]:
            seen.append(row["id"])
            return row

        assert blocks(100, 20).map(note).limit(3).count() == 3
        assert seen == []
        assert blocks(100, 20).map(note).take(3) == [{"id": 0}, {"id": 1}, {"id": 2}]
        assert len(seen) == 5

    def test_union(self) -> None:
        both = blocks(3).union(blocks(2), blocks(1))
        assert ids(both) == [0, 1, 2, 0, 1, 0]
        mixed = blocks(3).map(lambda row: row).union(blocks(2).filter(lambda row: row["id"]))
        assert ids(mixed) == [0, 1, 2, 1]
        shuffled = blocks(20).random_shuffle(seed=1).union(blocks(3))
        assert ids(shuffled)[20:] == [0, 1, 2]
        assert sorted(ids(shuffled)[:20]) == list(range(20)) != ids(shuffled)[:20]
        whole = shuffled.random_shuffle(seed=2)
        assert sorted(ids(whole)) == sorted([*range(20), *range(3)])
        with pytest.raises(TypeError, match="give datasets"):
            blocks(3).union([1])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="parts with the columns id and item"):
            blocks(3).union(lockstep.data.from_items([1])).schema()

    def test_a_union_has_one_type_a_column(self) -> None:
        halves = lockstep.data.from_items([{"id": 0.5}, {"id": 1.5}])
        both = blocks(2).union(halves, blocks(1).map(lambda row: row).materialize())
        assert [str(field.type) for field in both.schema()] == ["double"]
        assert {b["id"].dtype.kind for b in both.iter_batches(batch_size=1)} == {"f"}
        assert ids(both) == [0, 1, 0.5, 1.5, 0]
        with pytest.raises(ValueError, match="whose column 'id' is int64 and string"):
            blocks(2).union(lockstep.data.from_items([{"id": "a"}])).prepare(1)

    def test_a_union_with_nothing(self) -> None:
        nothing = lockstep.data.from_items([])
        for both in (nothing.union(blocks(3)), blocks(3).union(nothing)):
            assert (ids(both), both.columns()) == ([0, 1, 2], ["id"])
        assert nothing.union(nothing).count() == 0
        with pytest.raises(TypeError, match=r"union\(\[1\]\): give datasets"):
            blocks(3).union([1])  # type: ignore[arg-type]

    def test_rows_with_different_columns(self) -> None:
        odd = blocks(20, 4).map(lambda row: {"id": 1} if row["id"] < 7 else {"id": 1, "x": 2})
        assert odd.take_all()[-1] == {"id": 1, "x": 2}
        with pytest.raises(ValueError, match="Column 'x' is in some of the rows only"):
            list(odd.iter_batches(batch_size=20))

    def test_zip(self) -> None:
        other = blocks(4, 1).rename_columns({"id": "n"})
        zipped = blocks(4).zip(other, blocks(4))
        assert zipped.take(2)[1] == {"id": 1, "n": 1, "id_1": 1}
        with pytest.raises(ValueError, match="datasets of 4 and 3 rows"):
            blocks(4).zip(blocks(3)).count()
        with pytest.raises(TypeError, match=r"zip\(3\): give datasets"):
            blocks(4).zip(3)  # type: ignore[arg-type]

    def test_sort(self) -> None:
        dataset = lockstep.data.from_items([{"a": i % 3, "b": i} for i in range(6)])
        assert ids(dataset.sort("a"), "b") == [0, 3, 1, 4, 2, 5]
        assert ids(dataset.sort(["a", "b"], descending=[True, False]), "b") == [2, 5, 1, 4, 0, 3]
        assert ids(dataset.sort("b", descending=True), "b") == [5, 4, 3, 2, 1, 0]
        with pytest.raises(KeyError, match="sort: there is no column 'x'; there are a, b"):
            dataset.sort("x").take_all()
        with pytest.raises(ValueError, match="one direction, or one for each"):
            dataset.sort("a", descending=[True, False])
        assert dataset.flat_map(lambda row: []).sort("b").take_all() == []

    def test_repartition(self) -> None:
        dataset = blocks(20, 1).repartition(6)
        assert dataset.num_blocks() == 6 - 1  # of four rows each
        assert ids(dataset) == list(range(20))
        assert blocks(20, 4).repartition(target_num_rows_per_block=2).num_blocks() == 12
        assert sorted(ids(dataset.repartition(3, shuffle=True))) == list(range(20))
        with pytest.raises(ValueError, match="num_blocks or target_num_rows_per_block"):
            dataset.repartition()
        with pytest.raises(ValueError, match=r"repartition\(0\)"):
            dataset.repartition(0)

    def test_shuffle_is_another_one_in_each_epoch(self) -> None:
        dataset = blocks(30).random_shuffle(seed=3)
        epochs = [
            [int(i) for b in dataset.iter_batches(batch_size=7) for i in b["id"]] for _ in range(3)
        ]
        assert all(sorted(epoch) == list(range(30)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 3
        assert ids(dataset) == epochs[0]
        assert ids(blocks(30).random_shuffle(seed=4)) != epochs[0]
        mapped = dataset.map(lambda row: {"id": row["id"] * 2})
        assert ids(mapped) == [i * 2 for i in epochs[0]]
        with pytest.raises(ValueError, match="window='some'"):
            dataset.random_shuffle(window="some")
        with pytest.raises(TypeError, match="seed='x'"):
            dataset.random_shuffle(seed="x")  # type: ignore[arg-type]

    def test_a_windowed_shuffle_moves_blocks_and_permutes_windows(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a", row_group_size=10)
        dataset = lockstep.data.read_parquet(tmp_path / "a").random_shuffle(seed=1, window=50)
        rows = ids(dataset)
        assert sorted(rows) == list(range(1000))
        windows = [rows[start : start + 50] for start in range(0, 1000, 50)]
        groups = [{row // 10 for row in window} for window in windows]
        assert all(len(group) == 5 for group in groups)
        assert any(max(group) - min(group) > 5 for group in groups)
        assert all(window != sorted(window) for window in windows)
        blocks_only = ids(dataset.randomize_block_order(seed=1))
        assert sorted(blocks_only) == list(range(1000)) != blocks_only
        assert all(blocks_only[i] + 1 == blocks_only[i + 1] for i in range(999) if (i + 1) % 10)

    def test_slices_of_something_shuffled(self) -> None:
        dataset = blocks(30).random_shuffle(seed=3)
        rows = ids(dataset)
        assert ids(dataset.limit(5)) == rows[:5]
        assert [i for part in dataset.split(4) for i in ids(part)] == rows
        assert ids(dataset.sort("id")) == list(range(30))

    def test_sample(self) -> None:
        chosen = blocks(1000).random_sample(0.3, seed=1)
        rows = ids(chosen)
        assert chosen.count() == len(rows)
        assert 240 < len(rows) < 360
        assert rows == sorted(set(rows))
        assert ids(chosen) == rows  # every time
        assert ids(blocks(1000).random_sample(0.3, seed=2)) != rows
        assert blocks(10).random_sample(0).count() == 0
        assert blocks(10).random_sample(1).count() == 10
        with pytest.raises(ValueError, match=r"random_sample\(2\)"):
            blocks(10).random_sample(2)

    def test_train_test_split(self) -> None:
        train, test = blocks(10).train_test_split(0.2)
        assert (ids(train), ids(test)) == (list(range(8)), [8, 9])
        train, test = blocks(10).train_test_split(3)
        assert (train.count(), ids(test)) == (7, [7, 8, 9])
        for size, number in ((0.25, 250), (100, 100)):
            train, test = blocks(1000).train_test_split(size, shuffle=True, seed=5)
            assert (train.count(), test.count()) == (1000 - number, number)
            assert sorted(ids(train) + ids(test)) == list(range(1000))
            assert ids(test) != sorted(ids(test))
            again = blocks(1000).train_test_split(size, shuffle=True, seed=5)[1]
            assert ids(again) == ids(test)
        plan = train.map(lambda row: row).prepare(3, equal=False)
        shards = [plan.shard(rank) for rank in range(3)]
        seen = [int(i) for shard in shards for b in shard.iter_batches() for i in b["id"]]
        assert sorted(seen) == sorted(ids(train))
        for wrong in (0.0, 1.0, 1.5, 0, 1000, -1):
            with pytest.raises(ValueError, match="train_test_split"):
                blocks(1000).train_test_split(wrong)
        with pytest.raises(TypeError, match="give a fraction or a number"):
            blocks(10).train_test_split("0.2")  # type: ignore[arg-type]

    def test_splits(self) -> None:
        assert [ids(part) for part in blocks(7).split(3)] == [[0, 1], [2, 3], [4, 5, 6]]
        assert [ids(part) for part in blocks(7).split(3, equal=True)] == [[0, 1], [2, 3], [4, 5]]
        assert [part.count() for part in blocks(1).split(2, equal=True)] == [0, 0]
        parts = blocks(7).split_at_indices([2, 5, 50])
        assert [ids(part) for part in parts] == [[0, 1], [2, 3, 4], [5, 6], []]
        assert [p.count() for p in blocks(10).split_proportionately([0.2, 0.5])] == [2, 5, 3]
        with pytest.raises(ValueError, match=r"split\(0\)"):
            blocks(7).split(0)
        with pytest.raises(ValueError, match="in ascending order"):
            blocks(7).split_at_indices([3, 1])
        with pytest.raises(ValueError, match="sum up to less"):
            blocks(7).split_proportionately([0.5, 0.5])
        shards = blocks(10).streaming_split(2, equal=True)
        assert [shard.count() for shard in shards] == [5, 5]


class TestAggregates:
    def test_numbers(self) -> None:
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

    def test_a_standard_deviation_far_from_zero(self) -> None:
        numbers = 1e9 + np.arange(1000) % 7
        dataset = lockstep.data.from_numpy({"x": numbers}).repartition(9)
        assert dataset.std("x") == pytest.approx(np.std(numbers, ddof=1), rel=1e-9)

    def test_without_rows(self) -> None:
        empty = blocks(5).filter(lambda row: False)
        assert empty.count() == 0
        assert empty.sum("id") is None
        assert empty.unique("id") == []
        assert empty.take(3) == []
        assert empty.to_pandas().columns.tolist() == ["id"]
        with pytest.raises(ValueError, match="the dataset is empty"):
            empty.take_batch()

    def test_nothing_of_nothing(self) -> None:
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

    def test_unique(self) -> None:
        dataset = lockstep.data.from_items([{"x": v} for v in ("b", None, "a", "b")] * 3)
        assert dataset.repartition(5).unique("x") == ["b", None, "a"]
        assert dataset.unique("x", ignore_nulls=True) == ["b", "a"]
        late = blocks(4).map(lambda row: {"x": None if row["id"] < 2 else 5})
        assert late.unique("x") == [None, 5]
        with pytest.raises(KeyError, match="unique: there is no column 'y'; there are x"):
            dataset.unique("y")

    def test_only_the_columns_asked_for_are_read(self, tmp_path: Path) -> None:
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


class TestOutputs:
    def test_frames_and_tables(self) -> None:
        dataset = lockstep.data.from_items([{"x": 1, "s": "a"}, {"x": 2, "s": None}])
        assert dataset.to_pandas()["x"].tolist() == [1, 2]
        assert dataset.to_arrow().to_pylist() == dataset.take_all()
        assert dataset.to_numpy("x").tolist() == [1, 2]
        assert set(dataset.to_numpy()) == {"x", "s"}
        with pytest.raises(KeyError, match="to_numpy: there is no column 'y'; there are x, s"):
            dataset.to_numpy("y")
        with pytest.raises(ValueError, match="more than limit=1 rows"):
            dataset.to_pandas(limit=1)
        with pytest.raises(ValueError, match="there are more rows"):
            dataset.take_all(limit=1)

    def test_show_and_repr(self, capsys: pytest.CaptureFixture[str]) -> None:
        dataset = blocks(3)
        dataset.show(2)
        assert capsys.readouterr().out == "{'id': 0}\n{'id': 1}\n"
        assert repr(dataset) == "Dataset(rows=3, columns=[id])"
        assert repr(dataset.map(lambda row: row)) == "Dataset(not read yet)"

    @pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
    def test_files(self, kind: str, tmp_path: Path) -> None:
        dataset = lockstep.data.from_items([{"x": i, "s": f"é{i}"} for i in range(100)])
        write = getattr(dataset.repartition(7), f"write_{kind}")
        names = write(tmp_path / "out", num_rows_per_file=40)
        token = names[0][11:19]
        assert names == [f"part-{number:05d}-{token}.{kind}" for number in range(3)]
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
        read = getattr(lockstep.data, f"read_{kind}")
        assert read(tmp_path / "out").take_all() == dataset.take_all()
        with pytest.raises(ValueError, match="num_rows_per_file=0"):
            write(tmp_path / "out", num_rows_per_file=0)

    def test_files_of_an_earlier_write(self, tmp_path: Path) -> None:
        def rows() -> list[int]:
            return sorted(ids(lockstep.data.read_parquet(tmp_path)))

        blocks(3).write_parquet(tmp_path, num_rows_per_file=2)
        (tmp_path / "notes.txt").write_text("not ours")
        (added,) = blocks(2).write_parquet(tmp_path, concurrency=2)
        assert re.fullmatch(r"part-00002-[0-9a-f]{8}\.parquet", added)
        assert rows() == [0, 0, 1, 1, 2]
        assert blocks(9).write_parquet(tmp_path, mode="ignore") == []
        for mode in ("error", "create"):
            with pytest.raises(
                FileExistsError, match=r"'part-00000-\w+\.parquet' of an earlier wr"
            ):
                blocks(9).write_parquet(tmp_path, mode=mode)
        assert rows() == [0, 0, 1, 1, 2]
        blocks(4).write_parquet(tmp_path, mode="overwrite", min_rows_per_file=3)
        assert rows() == [0, 1, 2, 3]
        assert len(list(tmp_path.iterdir())) == 3
        with pytest.raises(ValueError, match="mode='new' is not known; give 'append'"):
            blocks(4).write_parquet(tmp_path, mode="new")

    def test_files_of_another_format_and_of_an_older_name(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"id": [5]}), tmp_path / "part-00007.parquet")
        assert blocks(2).write_csv(tmp_path, mode="ignore") == []
        with pytest.raises(FileExistsError, match=r"'part-00007\.parquet' of an earlier write"):
            blocks(2).write_json(tmp_path, mode="error")
        names = blocks(2).write_csv(tmp_path, mode="overwrite")
        assert [path.name for path in tmp_path.iterdir()] == names
        assert names[0].startswith("part-00008-")

    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    def test_two_writes_at_a_time_keep_both(self, mode: str, tmp_path: Path) -> None:
        blocks(3).write_parquet(tmp_path)

        def meanwhile(batch: dict[str, Any]) -> dict[str, Any]:
            lockstep.data.range(7).write_parquet(tmp_path, mode=mode)
            return batch

        outer = lockstep.data.range(5, override_num_blocks=1).map_batches(meanwhile)
        outer.write_parquet(tmp_path, mode=mode)
        rows = sorted(ids(lockstep.data.read_parquet(tmp_path)))
        kept = [0, 1, 2] if mode == "append" else []
        assert rows == sorted([*kept, *range(7), *range(5)])

    def test_numbers_in_json_keep_their_digits(self, tmp_path: Path) -> None:
        numbers = [1 / 3, 1e-20, 12345.678901234567]
        lockstep.data.from_items([{"x": x} for x in numbers]).write_json(tmp_path)
        again = ids(lockstep.data.read_json(tmp_path), "x")
        assert again == pytest.approx(numbers, rel=1e-12, abs=0)

    def test_tensors_in_files(self, tmp_path: Path) -> None:
        dataset = lockstep.data.range_tensor(4, shape=(2, 3))
        dataset.write_parquet(tmp_path / "p", compression="zstd")
        again = lockstep.data.read_parquet(tmp_path / "p")
        np.testing.assert_array_equal(again.to_numpy("data"), dataset.to_numpy("data"))
        lockstep.data.range_tensor(2, shape=(2,)).write_json(tmp_path / "j")
        rows = next((tmp_path / "j").iterdir()).read_text().split()
        assert [json.loads(row) for row in rows] == [{"data": [0, 0]}, {"data": [1, 1]}]

    def test_a_write_that_fails_leaves_no_half_file(self, tmp_path: Path) -> None:
        def fail_late(batch: dict[str, Any]) -> dict[str, Any]:
            if batch["id"][0] > 5:
                raise RuntimeError("late")
            return batch

        with pytest.raises(RuntimeError, match="late"):
            blocks(10).map_batches(fail_late).write_csv(tmp_path / "out", num_rows_per_file=3)
        left = sorted((tmp_path / "out").iterdir())
        assert [path.read_text().count("\n") for path in left] == [4, 4]

    def test_materialize(self) -> None:
        calls = []

        def note(row: dict[str, Any]) -> dict[str, Any]:
            calls.append(row)
            return row

        kept = blocks(5).map(note).materialize()
        assert len(calls) == 5
        assert ids(kept) == ids(kept) == list(range(5))
        assert len(calls) == 5


class TestColumnTypes:
    def test_numpy_batches(self) -> None:
        import datetime

        day = datetime.datetime(2024, 1, 2)
        dataset = lockstep.data.from_arrow(
            pa.table(
                {
                    "i": pa.array([1, None], pa.int32()),
                    "f": np.array([1, 2], np.float16),
                    "b": [True, False],
                    "s": ["a", None],
                    "t": [day, day],
                    "l": [[1, 2], [3, 4]],
                    "r": [[1], [2, 3]],
                    "d": pa.array(["x", "y"]).dictionary_encode(),
                    "n": [{"a": 1}, {"a": 2}],
                    "y": [b"1", b"2"],
                }
            )
        )
        batch = dataset.take_batch(2)
        assert math.isnan(batch["i"][1])
        assert batch["f"].dtype == np.float16
        assert batch["b"].dtype == bool
        assert batch["s"].tolist() == ["a", None]
        assert batch["t"][0] == np.datetime64(day)
        assert batch["l"].shape == (2, 2)
        assert [part.tolist() for part in batch["r"]] == [[1], [2, 3]]
        assert batch["d"].tolist() == ["x", "y"]
        assert batch["n"].tolist() == [{"a": 1}, {"a": 2}]
        assert batch["y"].tolist() == [b"1", b"2"]
        streamed = next(iter(dataset.iter_batches(batch_size=2)))
        assert {k: str(v.dtype) for k, v in streamed.items()} == {
            k: str(v.dtype) for k, v in batch.items()
        }

    def test_arrays_of_different_shapes(self) -> None:
        arrays = [np.zeros((1, 2)), np.ones((3, 1)), np.full((2, 2), 7.0)]
        dataset = lockstep.data.from_items([{"x": array} for array in arrays])
        for got in (
            [row["x"] for row in dataset.take_all()],
            list(dataset.take_batch(3)["x"]),
            [a for b in dataset.repartition(3).iter_batches(batch_size=2) for a in b["x"]],
        ):
            for one, two in zip(got, arrays, strict=True):
                np.testing.assert_array_equal(one, two)

    def test_lists_of_one_length_in_some_batches_only(self) -> None:
        dataset = lockstep.data.from_items([{"x": [1, 2]}] * 4 + [{"x": [1]}] * 4)
        batches = list(dataset.repartition(4).iter_batches(batch_size=3))
        assert [batch["x"].dtype == object for batch in batches] == [False, True, False]
        assert [list(map(len, batch["x"])) for batch in batches] == [[2, 2, 2], [2, 1, 1], [1, 1]]


def test_what_is_left_to_frame_libraries() -> None:
    with pytest.raises(AttributeError, match=r"no groupby\(\): do that in a frame library"):
        getattr(blocks(3), "groupby")  # noqa: B009
    with pytest.raises(AttributeError, match="A dataset has no 'nope'"):
        getattr(blocks(3), "nope")  # noqa: B009
