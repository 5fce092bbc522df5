"""The lines of text files."""

from __future__ import annotations

from pathlib import Path

import pytest

import lockstep.data
from lockstep.errors import StorageError
from tests.data.datasets import column


def test_lines(tmp_path: Path, small_blocks: None) -> None:
    lines = [f"line {i} ä" if i % 5 else "" for i in range(100)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    dataset = lockstep.data.read_text(tmp_path)
    assert column(dataset, "text") == [line for line in lines if line]
    assert dataset.count() == 80
    dataset = lockstep.data.read_text(tmp_path, drop_empty_lines=False)
    assert column(dataset, "text") == lines
    assert dataset.count() == 100


def test_encodings(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("ä\r\nb\r\n".encode("utf-16"))
    dataset = lockstep.data.read_text(tmp_path, encoding="utf-16")
    assert column(dataset, "text") == ["ä", "b"]
    with pytest.raises(StorageError, match=r"Could not read '.*a.txt': 'utf-8' codec"):
        lockstep.data.read_text(tmp_path).take_all()
