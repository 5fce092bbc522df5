"""Which files are read for the source lines of a stack: the names come from outside."""

from __future__ import annotations

import linecache
import os
from pathlib import Path

import pytest

from lockstep.console.source_lines import MAX_BYTES, source_line


def test_a_line_of_a_source_file() -> None:
    assert source_line(__file__, 1) == Path(__file__).read_text().splitlines()[0]
    assert source_line(__file__, 0) == source_line(__file__, 10**9) == ""


def test_a_notebooks_cell_is_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linecache.cache, "<cell>", (3, None, ["a = 1\n"], "<cell>"))
    assert source_line("<cell>", 1) == "a = 1\n"


@pytest.mark.parametrize("target", ["/dev/zero", "/proc/self/environ", "pipe", "large", "secret"])
def test_nothing_else_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("secret").write_text("password\n")
    with open("large", "wb") as large:
        large.truncate(MAX_BYTES + 1)
    assert source_line(target, 1) == ""
    assert source_line(os.path.abspath(target), 1) == ""
    Path("link.py").symlink_to(target)  # a name that looks right does not help
    assert source_line(str(tmp_path / "link.py"), 1) == ""


def test_a_relative_name_and_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.py").write_text("x\n")
    assert source_line("here.py", 1) == ""
    assert source_line(str(tmp_path / "none.py"), 1) == ""
    assert source_line("/a\0b.py", 1) == ""
