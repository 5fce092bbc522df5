"""Transforms of batches, rows and columns, and their errors."""

from __future__ import annotations

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
from tests.data.datasets import blocks, column


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
        assert column(doubled) == list(range(0, 20, 2))

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
            assert blocks(20, 2).map_batches(note, batch_size=size).to_arrow().num_rows == 20
            assert seen == [10, 10]

    def test_arguments(self) -> None:
        def add(batch: dict[str, Any], one: int, *, two: int) -> dict[str, Any]:
            return {"id": batch["id"] + one + two}

        assert column(blocks(3).map_batches(add, fn_args=[1], fn_kwargs={"two": 10})) == [
            11,
            12,
            13,
        ]

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
        assert column(added) == list(range(2, 10))
        assert column(added) == list(range(2, 10))
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
                together.wait(120)  # passes only if three are called at once
                return {"id": batch["id"], "who": np.array([id(self)] * len(batch["id"]))}

        dataset = blocks(12, 1).map_batches(Meeting, batch_size=4, concurrency=3)
        rows = dataset.take_all()
        assert [row["id"] for row in rows] == list(range(12))
        assert len({row["who"] for row in rows}) == 3
        together.reset()
        assert len(blocks(12, 1).map_batches(Meeting, concurrency=(1, 3)).take_all()) == 12
        with pytest.raises(ValueError, match="concurrency=0"):
            blocks(12).map_batches(Meeting, concurrency=0)
        with pytest.raises(TypeError, match="compute=3: give an ActorPoolStrategy"):
            blocks(12).map_batches(Meeting, compute=3)

    def test_generators(self) -> None:
        def twice(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
            yield batch
            yield batch

        assert column(blocks(2, 1).map_batches(twice, preserves_rows=False)) == [0, 1, 0, 1]

    def test_tensors(self) -> None:
        def images(batch: dict[str, Any]) -> dict[str, Any]:
            return {"image": np.ones((len(batch["id"]), 2, 3)) * batch["id"][:, None, None]}

        dataset = blocks(6).map_batches(images)
        assert dataset.take_batch(6)["image"].shape == (6, 2, 3)
        assert dataset.take_all()[5]["image"].tolist() == [[5.0] * 3] * 2
        sums = dataset.map_batches(lambda b: {"sum": b["image"].sum(axis=(1, 2))})
        assert column(sums, "sum") == [0, 6, 12, 18, 24, 30]
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
            dataset.map_batches(in_place, zero_copy_batch=True).take_all()
        assert column(dataset.map_batches(in_place)) == [0, 2, 4]
        assert column(dataset.map_batches(in_place, batch_format="torch")) == [0, 2, 4]
        assert column(dataset.map_batches(in_place, batch_format="pandas")) == [0, 2, 4]
        assert column(dataset) == [0, 1, 2]
        # The same block is read once for several slices: neither sees what the other has written.
        halves = [blocks(6, 1).split(2)[part].map_batches(in_place) for part in (0, 1)]
        assert column(halves[0].union(halves[1])) == [0, 2, 4, 6, 8, 10]

    def test_arrays_in_rows_can_be_written_to(self) -> None:
        def add(row: dict[str, Any]) -> dict[str, Any]:
            row["x"] += 1
            return row

        def add_each(batch: dict[str, Any]) -> dict[str, Any]:
            for array in batch["x"]:
                array += 1
            return batch

        for arrays in ([np.zeros(2)] * 2, [np.zeros((2, 1))] * 2, [np.zeros(1), np.zeros(2)]):
            dataset = lockstep.data.from_items([{"x": array} for array in arrays])
            changes = [dataset.map_batches(add_each)]
            if arrays[0].shape == arrays[1].shape:  # otherwise rows have lists
                changes.append(dataset.map(add))
            for changed in changes:
                assert {float(np.ravel(row["x"])[0]) for row in changed.take_all()} == {1.0}
            assert {float(np.ravel(row["x"])[0]) for row in dataset.take_all()} == {0.0}

    def test_data_from_files_is_not_copied_to_be_writable(self, tmp_path: Path) -> None:
        addresses = []

        def in_place(batch: dict[str, Any]) -> dict[str, Any]:
            addresses.append(batch["id"].ctypes.data)
            batch["id"] += 1
            return batch

        pq.write_table(pa.table({"id": np.arange(1000)}), tmp_path / "a.parquet")
        dataset = lockstep.data.read_parquet(tmp_path).map_batches(in_place)
        (batch,) = dataset.iter_batches(batch_size=1000, prefetch_batches=0)
        assert batch["id"].tolist() == list(range(1, 1001))
        assert batch["id"].ctypes.data == addresses[0]

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

    def test_counting_does_not_run_it(self) -> None:
        calls = []

        def same(batch: dict[str, Any]) -> dict[str, Any]:
            calls.append(len(batch["id"]))
            return batch

        for keeps in (None, True):
            assert blocks(20).map_batches(same, preserves_rows=keeps).count() == 20
        assert calls == []
        assert blocks(20).map_batches(same, preserves_rows=False).count() == 20
        assert sum(calls) == 20

    def test_a_number_of_rows_that_changes(self) -> None:
        def half(batch: dict[str, Any]) -> dict[str, Any]:
            return {"id": batch["id"][::2]}

        dataset = blocks(20).map_batches(half)
        expected = [0, 2, 4, 5, 7, 9, 10, 12, 14, 15, 17, 19]
        with pytest.warns(UserWarning, match=r"returned 3 rows for 5, but count\(\) and shards"):
            assert column(dataset) == expected  # only looked at: any number is fine
        assert dataset.count() == 12
        with pytest.raises(ValueError, match="returned 3 rows for 5; give map_batches"):
            blocks(20).map_batches(half, preserves_rows=True).take_all()
        assert [i for b in dataset.iter_batches(batch_size=5) for i in b["id"].tolist()] == expected
        message = r"returned 3 rows for 5; give map_batches preserves_rows=False"
        with pytest.raises(ValueError, match=message):
            list(dataset.prepare(2).shard(0).iter_batches())
        with pytest.raises(ValueError, match=r"rows for .*; give map_batches preserves_rows=False"):
            dataset.limit(3).take_all()
        declared = blocks(20).map_batches(half, preserves_rows=False)
        assert declared.count() == 12
        plan = declared.prepare(3)
        assert (
            sorted(
                i for r in range(3) for b in plan.shard(r).iter_batches() for i in b["id"].tolist()
            )
            == expected
        )
        assert column(declared.limit(4)) == expected[:4]

    def test_rays_name_for_a_number_of_rows_that_changes(self) -> None:
        def first(batch: dict[str, Any]) -> dict[str, Any]:
            return {"id": batch["id"][:1]}

        fewer = blocks(10, 2).map_batches(first, udf_modifying_row_count=True)
        assert fewer.prepare(2).rows == 2
        with pytest.raises(ValueError, match="returned 1 rows for"):
            blocks(10, 2).map_batches(first, udf_modifying_row_count=False).limit(9).take_all()

    def test_hints_for_rays_scheduler(self) -> None:
        hints: dict[str, Any] = {"num_gpus": 1, "resources": {"tpu": 1}, "max_retries": 2}
        dataset = blocks(4).map_batches(lambda batch: batch, **hints).map(lambda row: row, **hints)
        dataset = dataset.flat_map(lambda row: [row], **hints).filter(lambda row: True, **hints)
        dataset = dataset.add_column("x", lambda frame: frame["id"], **hints)
        dataset = dataset.select_columns(["id", "x"], **hints).drop_columns("x", **hints)
        assert column(dataset.rename_columns({"id": "y"}, **hints), "y") == [0, 1, 2, 3]
        assert sorted(column(blocks(4).random_shuffle(seed=1, **hints))) == [0, 1, 2, 3]
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
            blocks(5).map(lambda row: 3).take_all()

    def test_flat_map(self) -> None:
        repeated = blocks(4).flat_map(lambda row: [row] * row["id"])
        assert column(repeated) == [1, 2, 2, 3, 3, 3]
        assert repeated.count() == 6
        assert [part.count() for part in repeated.split(2)] == [3, 3]
        with pytest.raises(TypeError, match=r"flat_map\(.*\) returned .*; return a list of dicts"):
            blocks(4).flat_map(lambda row: row).take_all()

    def test_filter(self) -> None:
        even = blocks(20).filter(lambda row: row["id"] % 2 == 0)
        assert column(even) == list(range(0, 20, 2))
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
        assert column(blocks(20).filter(expr=text)) == expected

    @pytest.mark.parametrize(
        "text", ["id >", "id.x > 3", "open('x')", "[i for i in id]", "id ** 2"]
    )
    def test_text_that_is_no_filter(self, text: str) -> None:
        with pytest.raises(ValueError, match="The filter"):
            blocks(20).filter(expr=text)

    def test_filter_by_expression(self) -> None:
        assert column(blocks(20).filter(expr=pc.field("id") == 7)) == [7]
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
        assert column(kept.select_columns(["c"]), "c") == [6, 7, 6, 7]
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
        assert column(dataset, "who") == ["me"] * 4
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
