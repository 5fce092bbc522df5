"""CSV files: blocks, types, options, and errors that name the file and the column."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pytest

import lockstep.data
from lockstep.data import Dataset
from lockstep.errors import StorageError
from tests.data.datasets import column


def test_blocks_end_with_lines(tmp_path: Path, small_blocks: None) -> None:
    text = "x,y\n" + "".join(f"{i},{'a' * (i % 7)}\n" for i in range(200))
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "b.csv").write_text(text.rstrip("\n"))
    dataset = lockstep.data.read_csv(tmp_path)
    assert dataset.num_blocks() > 20
    assert column(dataset, "x") == [*range(200), *range(200)]
    assert column(dataset, "y")[:3] == ["", "a", "aa"]
    assert dataset.count() == 400
    plan = dataset.prepare(3)
    assert [plan.shard(rank).count() for rank in range(3)] == [133] * 3
    assert dataset.select_columns("y").take(2) == [{"y": ""}, {"y": "a"}]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_empty_lines_are_no_rows(tmp_path: Path, small_blocks: None, end: str) -> None:
    lines = ["x"]
    for i in range(100):
        lines += [str(i)] + [""] * (i % 3)
    (tmp_path / "a.csv").write_text(end.join(lines), newline="")
    dataset = lockstep.data.read_csv(tmp_path / "a.csv")
    assert dataset.count() == 100
    shard = dataset.prepare(1).shard(0)
    assert [i for b in shard.iter_batches() for i in b["x"].tolist()] == list(range(100))


def test_types_are_found_from_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.data.sources.csv._SAMPLE", 1000)
    monkeypatch.setattr("lockstep.data.sources.csv._LATER_SAMPLE", 500)
    monkeypatch.setattr("lockstep.data.sources.lines.BLOCK_BYTES", 1000)
    rows = [f"{i},{i},{i}" for i in range(1000)]
    rows[990:] = [f"{i},{i}.5,word" for i in range(990, 1000)]
    (tmp_path / "a.csv").write_text("i,f,s\n" + "\n".join(rows))
    dataset = lockstep.data.read_csv(tmp_path / "a.csv")
    assert [str(field.type) for field in dataset.schema()] == ["int64", "double", "string"]
    assert dataset.take_all()[-1] == {"i": 999, "f": 999.5, "s": "word"}


def test_a_type_no_sample_has_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.data.sources.csv._SAMPLE", 100)
    monkeypatch.setattr("lockstep.data.sources.csv._LATER_SAMPLE", 100)
    rows = [f"{i},{i}" for i in range(1000)]
    rows[200] = "200,word"
    (tmp_path / "a.csv").write_text("i,n\n" + "\n".join(rows))
    with pytest.raises(StorageError, match=r"a.csv': column 'n': .*'word'; say what it is"):
        lockstep.data.read_csv(tmp_path / "a.csv").take_all()
    options = pyarrow.csv.ConvertOptions(column_types={"n": pa.string()})
    dataset = lockstep.data.read_csv(tmp_path / "a.csv", convert_options=options)
    assert dataset.take_all()[200] == {"i": 200, "n": "word"}


def test_files_that_differ(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,y\n1,word\n")
    (tmp_path / "c.csv").write_text("x\n1\n")
    (tmp_path / "d.csv").write_text("x,y\n1.5,\n")

    def read(*names: str) -> Dataset:
        return lockstep.data.read_csv([tmp_path / name for name in names])

    with pytest.raises(ValueError, match=r"'y' looks like string in '.*b.csv' but like int64"):
        read("a.csv", "b.csv").count()
    with pytest.raises(ValueError, match=r"c.csv' has no column 'y', which is in '.*a.csv'"):
        read("a.csv", "c.csv").count()
    assert read("a.csv", "d.csv").take_all() == [{"x": 1.0, "y": 2}, {"x": 1.5, "y": None}]


def test_line_breaks_inside_values(tmp_path: Path, small_blocks: None) -> None:
    rows = "".join(f'{i},"a\nb"\n' for i in range(50))
    (tmp_path / "a.csv").write_text("x,y\n" + rows)
    with pytest.raises(StorageError, match=r"a.csv': .*newlines_in_values=True"):
        lockstep.data.read_csv(tmp_path / "a.csv").take_all()
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    dataset = lockstep.data.read_csv(tmp_path / "a.csv", parse_options=options)
    assert (dataset.count(), dataset.num_blocks()) == (50, 1)
    assert dataset.take(1) == [{"x": 0, "y": "a\nb"}]


def test_arrow_options(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "a.csv").write_text("# made by hand\n" + "1;2\n" * 60)
    dataset = lockstep.data.read_csv(
        tmp_path / "a.csv",
        read_options=pyarrow.csv.ReadOptions(skip_rows=1, column_names=["p", "q"]),
        parse_options=pyarrow.csv.ParseOptions(delimiter=";"),
        convert_options=pyarrow.csv.ConvertOptions(include_columns=["q"]),
    )
    assert dataset.take_all() == [{"q": 2}] * 60
    (tmp_path / "b.csv").write_bytes("x\nä\n".encode("latin-1"))
    dataset = lockstep.data.read_csv(
        tmp_path / "b.csv", read_options=pyarrow.csv.ReadOptions(encoding="latin-1")
    )
    assert dataset.take_all() == [{"x": "ä"}]


def test_compressed(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("x\n" + "\n".join(map(str, range(1000))))
    dataset = lockstep.data.read_csv(tmp_path / "a.csv.gz")
    assert (dataset.count(), dataset.num_blocks()) == (1000, 1)
    assert column(dataset, "x") == list(range(1000))
    (tmp_path / "b.csv.gz").write_text("no")
    with pytest.raises(StorageError, match=r"Could not read '.*b.csv.gz'"):
        lockstep.data.read_csv(tmp_path / "b.csv.gz").take_all()


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(StorageError, match=r"a.csv': it is empty, without a header"):
        lockstep.data.read_csv(tmp_path / "a.csv").count()
    (tmp_path / "b.csv").write_text("x,y\n")
    dataset = lockstep.data.read_csv(tmp_path / "b.csv")
    assert (dataset.count(), dataset.columns()) == (0, ["x", "y"])


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    dataset = lockstep.data.read_csv(tmp_path / "a.csv")
    assert dataset.count() == 2
    (tmp_path / "a.csv").write_text("x\n123\n")
    with pytest.raises(ValueError, match=r"a.csv' has 1 rows where 2 were counted"):
        dataset.take_all()


def test_filters_and_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n3,c\n")
    dataset = lockstep.data.read_csv(tmp_path / "a.csv", filters="x > 1", columns=["y"])
    assert dataset.take_all() == [{"y": "b"}, {"y": "c"}]
    with pytest.raises(KeyError, match=r"a.csv' has no column 'q'; it has x, y"):
        lockstep.data.read_csv(tmp_path / "a.csv", columns=["y", "q"])
