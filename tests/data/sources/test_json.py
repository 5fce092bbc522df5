"""JSON files: lines and lists, and errors that name the file and the column."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import lockstep.data
from lockstep.errors import StorageError


def test_a_row_a_line(tmp_path: Path, small_blocks: None) -> None:
    rows = [{"x": i, "s": {"t": [i, i]}} for i in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset = lockstep.data.read_json(tmp_path)
    assert dataset.num_blocks() > 10
    assert dataset.take_all() == rows
    assert dataset.count() == 100
    assert dataset.select_columns("x").take(1) == [{"x": 0}]


def test_a_list_of_rows(tmp_path: Path) -> None:
    rows = [{"x": 1, "y": "a"}, {"x": 2, "y": None}]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=2))
    assert lockstep.data.read_json(tmp_path).take_all() == rows
    with gzip.open(tmp_path / "b.json.gz", "wt") as file:
        json.dump(rows, file)
    assert lockstep.data.read_json(tmp_path).count() == 4


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}\n{"x": \n')
    with pytest.raises(StorageError, match=r"Could not read '.*a.json': JSON parse error"):
        lockstep.data.read_json(tmp_path / "a.json").take_all()
    (tmp_path / "b.json").write_text("[1, 2]")
    with pytest.raises(StorageError, match="not all of its entries are objects"):
        lockstep.data.read_json(tmp_path / "b.json").take_all()
    (tmp_path / "c.json").write_text("[1,")
    with pytest.raises(StorageError, match=r"Could not read '.*c.json'"):
        lockstep.data.read_json(tmp_path / "c.json").take_all()
    (tmp_path / "d.json").write_text("")
    with pytest.raises(StorageError, match=r"d.json': it is empty"):
        lockstep.data.read_json(tmp_path / "d.json").take_all()
    (tmp_path / "e.json").write_text('[{"y": 1, "x": 1}, {"y": 2, "x": "a"}]')
    with pytest.raises(StorageError, match=r"e.json': column 'x': Could not convert 'a'"):
        lockstep.data.read_json(tmp_path / "e.json").count()


def test_files_that_differ(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}\n')
    (tmp_path / "b.json").write_text('{"x": "a"}\n')
    with pytest.raises(ValueError, match=r"'x' is string in '.*b.json' but int64 in"):
        lockstep.data.read_json(tmp_path).count()
