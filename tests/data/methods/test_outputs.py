"""Rows as objects of other libraries, and as files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lockstep.data
from tests.data.datasets import blocks, column


def test_frames_and_tables() -> None:
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


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files(kind: str, tmp_path: Path) -> None:
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


def test_files_of_an_earlier_write(tmp_path: Path) -> None:
    def rows() -> list[int]:
        return sorted(column(lockstep.data.read_parquet(tmp_path)))

    blocks(3).write_parquet(tmp_path, num_rows_per_file=2)
    (tmp_path / "notes.txt").write_text("not ours")
    (added,) = blocks(2).write_parquet(tmp_path, concurrency=2)
    assert re.fullmatch(r"part-00002-[0-9a-f]{8}\.parquet", added)
    assert rows() == [0, 0, 1, 1, 2]
    assert blocks(9).write_parquet(tmp_path, mode="ignore") == []
    for mode in ("error", "create"):
        with pytest.raises(FileExistsError, match=r"'part-00000-\w+\.parquet' of an earlier wr"):
            blocks(9).write_parquet(tmp_path, mode=mode)
    assert rows() == [0, 0, 1, 1, 2]
    blocks(4).write_parquet(tmp_path, mode="overwrite", min_rows_per_file=3)
    assert rows() == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(ValueError, match="mode='new' is not known; give 'append'"):
        blocks(4).write_parquet(tmp_path, mode="new")


def test_files_of_another_format_and_of_an_older_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [5]}), tmp_path / "part-00007.parquet")
    assert blocks(2).write_csv(tmp_path, mode="ignore") == []
    with pytest.raises(FileExistsError, match=r"'part-00007\.parquet' of an earlier write"):
        blocks(2).write_json(tmp_path, mode="error")
    names = blocks(2).write_csv(tmp_path, mode="overwrite")
    assert [path.name for path in tmp_path.iterdir()] == names
    assert names[0].startswith("part-00008-")


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_two_writes_at_a_time_keep_both(mode: str, tmp_path: Path) -> None:
    blocks(3).write_parquet(tmp_path)

    def meanwhile(batch: dict[str, Any]) -> dict[str, Any]:
        lockstep.data.range(7).write_parquet(tmp_path, mode=mode)
        return batch

    outer = lockstep.data.range(5, override_num_blocks=1).map_batches(meanwhile)
    outer.write_parquet(tmp_path, mode=mode)
    rows = sorted(column(lockstep.data.read_parquet(tmp_path)))
    kept = [0, 1, 2] if mode == "append" else []
    assert rows == sorted([*kept, *range(7), *range(5)])


def test_numbers_in_json_keep_their_digits(tmp_path: Path) -> None:
    numbers = [1 / 3, 1e-20, 12345.678901234567]
    lockstep.data.from_items([{"x": x} for x in numbers]).write_json(tmp_path)
    again = column(lockstep.data.read_json(tmp_path), "x")
    assert again == pytest.approx(numbers, rel=1e-12, abs=0)


def test_tensors_in_files(tmp_path: Path) -> None:
    dataset = lockstep.data.range_tensor(4, shape=(2, 3))
    dataset.write_parquet(tmp_path / "p", compression="zstd")
    again = lockstep.data.read_parquet(tmp_path / "p")
    np.testing.assert_array_equal(again.to_numpy("data"), dataset.to_numpy("data"))
    lockstep.data.range_tensor(2, shape=(2,)).write_json(tmp_path / "j")
    rows = next((tmp_path / "j").iterdir()).read_text().split()
    assert [json.loads(row) for row in rows] == [{"data": [0, 0]}, {"data": [1, 1]}]


def test_a_write_that_fails_leaves_no_half_file(tmp_path: Path) -> None:
    def fail_late(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["id"][0] > 5:
            raise RuntimeError("late")
        return batch

    with pytest.raises(RuntimeError, match="late"):
        blocks(10).map_batches(fail_late).write_csv(tmp_path / "out", num_rows_per_file=3)
    left = sorted((tmp_path / "out").iterdir())
    assert [path.read_text().count("\n") for path in left] == [4, 4]
