"""Looking at a dataset, and keeping it in memory."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import lockstep.data
from tests.data.datasets import blocks, column


def test_show_and_repr(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = blocks(3)
    dataset.show(2)
    assert capsys.readouterr().out == "{'id': 0}\n{'id': 1}\n"


def test_print_says_what_a_dataset_is(tmp_path: Path) -> None:
    def scaled(batch: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("printing runs nothing")

    blocks(6, 1).write_parquet(tmp_path, num_rows_per_file=2)
    first = sorted(tmp_path.iterdir())[0]
    dataset = lockstep.data.read_parquet(tmp_path)
    assert str(dataset).splitlines() == [
        "Dataset(rows=6, schema={id: int64})",
        f"+- read_parquet('{first}', 2 more files)",
    ]
    mapped = dataset.filter(expr="id > 1").map_batches(scaled).random_shuffle(seed=1)
    both = mapped.union(blocks(3).rename_columns(["x"]).limit(2))
    assert repr(both).splitlines() == [
        "Dataset(rows=?, schema=?)",
        "+- union()",
        "   +- random_shuffle(seed=1)",
        "      +- map_batches(test_print_says_what_a_dataset_is.<locals>.scaled)",
        "         +- filter((id > 1))",
        f"            +- read_parquet('{first}', 2 more files)",
        "   +- limit(2)",
        "      +- rename_columns(['x'])",
        "         +- range(3)",
    ]
    again = pickle.loads(pickle.dumps(blocks(3).rename_columns(["x"]).split(2)[1]))
    assert repr(again).splitlines() == [
        "Dataset(rows=2, schema={x: int64})",
        "+- split(2): rows 1 to 3",
        "   +- rename_columns(['x'])",
        "      +- range(3)",
    ]
    assert repr(blocks(3).materialize()).splitlines()[1:] == ["+- materialize()", "   +- range(3)"]
    wide = lockstep.data.from_items([{f"c{n}": n for n in range(23)}])
    assert "c19: int64, … 3 more}" in repr(wide)


def test_print_reads_nothing(tmp_path: Path) -> None:
    class Items:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, place: int) -> int:
            raise AssertionError("printing reads nothing")

    assert repr(lockstep.data.from_torch(Items())).endswith("+- from_torch(Items)")
    (tmp_path / "a.csv").write_text("x\n1\n")
    dataset = lockstep.data.read_csv(tmp_path)
    assert repr(dataset).startswith("Dataset(rows=?, schema=?)\n+- read_csv('")
    assert dataset.count() == 1
    dataset.schema()
    assert repr(dataset).startswith("Dataset(rows=1, schema={x: int64})")
    assert repr(dataset.sort("x")).splitlines()[:2] == ["Dataset(rows=?, schema=?)", "+- sort('x')"]


def test_materialize() -> None:
    calls = []

    def note(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row)
        return row

    kept = blocks(5).map(note).materialize()
    assert len(calls) == 5
    assert column(kept) == column(kept) == list(range(5))
    assert len(calls) == 5


def test_an_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="A dataset has no 'nope'"):
        getattr(blocks(3), "nope")  # noqa: B009
