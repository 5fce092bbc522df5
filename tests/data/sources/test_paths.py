"""Paths, globs and directories name the files of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import lockstep.data
from tests.data.datasets import column


def test_a_file_a_list_a_glob_a_directory(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for number, name in enumerate(("a", "b", "deep/c", "deep/er/d")):
        pq.write_table(pa.table({"x": [number]}), tmp_path / f"{name}.parquet")
    (tmp_path / "notes.txt").write_text("no parquet")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".hidden.parquet").write_text("")

    def found(paths: Any, **options: Any) -> list[int]:
        return column(lockstep.data.read_parquet(paths, **options), "x")

    assert found(tmp_path / "b.parquet") == [1]
    assert found([tmp_path / "b.parquet", str(tmp_path / "a.parquet")]) == [1, 0]
    assert found(tmp_path) == [0, 1, 2, 3]
    assert found(f"{tmp_path}/*.parquet") == [0, 1]
    assert found(f"{tmp_path}/[ac].parquet") == [0]
    assert found(f"{tmp_path}/[!a-a].parquet") == [1]
    assert found(f"{tmp_path}/a*t") == [0]
    assert found(f"{tmp_path}/d*/*") == [2]
    assert found(f"{tmp_path}/deep/**") == [2, 3]
    assert found(f"{tmp_path}/**/*.parquet") == [0, 1, 2, 3]
    assert found(f"{tmp_path}/deep/*/?.parquet") == [3]
    assert found(f"file://{tmp_path}") == [0, 1, 2, 3]
    inside = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    assert found("deep", filesystem=inside) == [2, 3]
    assert found("deep/c.parquet", filesystem=inside) == [2]
    assert found("*.parquet", filesystem=inside) == [0, 1]


def test_a_path_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("x\n1\n")
    for path in ("a.csv", "*.csv", "."):
        assert column(lockstep.data.read_csv(path), "x") == [1]


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"read_csv\('.*/no'\): there is no such file"):
        lockstep.data.read_csv(tmp_path / "no")
    with pytest.raises(FileNotFoundError, match=r"no files with the ending parquet or pq"):
        lockstep.data.read_parquet(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there are no files there"):
        lockstep.data.read_parquet(f"{tmp_path}/*.parquet")
    with pytest.raises(ValueError, match="give at least one path"):
        lockstep.data.read_text([])
    with pytest.raises(TypeError, match="a path is a string or a Path"):
        lockstep.data.read_text([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="unknown scheme 'ftp'"):
        lockstep.data.read_text("ftp://there/a.txt")


def test_paths_that_may_be_missing(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    paths: list[Any] = [tmp_path / "no", tmp_path / "a.parquet", f"{tmp_path}/*.pq"]
    assert column(lockstep.data.read_parquet(paths, ignore_missing_paths=True), "x") == [1]
    with pytest.raises(FileNotFoundError, match="no'"):
        lockstep.data.read_parquet(paths)
    with pytest.raises(FileNotFoundError, match="no'"):
        lockstep.data.read_parquet(paths[:1], ignore_missing_paths=True)
    with pytest.raises(TypeError, match=r"read_csv\(None\): give a path, or a list"):
        lockstep.data.read_csv(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "text"])
def test_a_column_of_paths(kind: str, tmp_path: Path) -> None:
    data = lockstep.data.from_items([{"x": "a"}, {"x": "b"}, {"x": "c"}])
    write = data.write_csv if kind == "text" else getattr(data, f"write_{kind}")
    write(tmp_path, num_rows_per_file=2)
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    read = getattr(lockstep.data, f"read_{kind}")
    dataset = read(tmp_path, include_paths=True)
    assert set(column(dataset, "path")) == set(files)
    assert dataset.columns()[-1] == "path"
    assert dataset.limit(1).take_all()[0]["path"] == files[0]
    if kind != "text":
        last = read(tmp_path, include_paths=True, filters=f"path == {files[1]!r}")
        assert column(last, "x") == ["c"]
        assert last.select_columns("path").take_all() == [{"path": files[1]}]
        assert read(tmp_path, include_paths=True, columns=["x"]).columns() == ["x", "path"]


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_column_of_paths_that_is_there_already(kind: str, tmp_path: Path) -> None:
    data = lockstep.data.from_items([{"path": "own", "x": i} for i in range(4)])
    getattr(data, f"write_{kind}")(tmp_path, num_rows_per_file=2)
    read = getattr(lockstep.data, f"read_{kind}")
    assert read(tmp_path, filters="path == 'own'").count() == 4
    for filters in (None, "path == 'own'", "x > 2"):
        with pytest.raises(ValueError, match=r"adds a column 'path', but '.*/part-0.*' has one"):
            read(tmp_path, include_paths=True, filters=filters)


def test_blocks_in_another_order_each_epoch(tmp_path: Path) -> None:
    lockstep.data.range(40).write_parquet(tmp_path, num_rows_per_file=4)
    shuffle = lockstep.data.FileShuffleConfig(seed=1)

    def epochs(given: Any) -> list[list[int]]:
        dataset = lockstep.data.read_parquet(tmp_path, shuffle=given, override_num_blocks=3)
        batches = dataset.iter_batches(batch_size=4)
        return [[int(batch["id"][0]) for batch in batches] for _ in range(2)]

    first, second = epochs(shuffle)
    assert sorted(first) == sorted(second) == list(range(0, 40, 4))
    assert first != second
    assert epochs(shuffle) == [first, second] != epochs("files")
    assert epochs(None) == [list(range(0, 40, 4))] * 2
    with pytest.raises(ValueError, match="shuffle='rows': give 'files'"):
        lockstep.data.read_parquet(tmp_path, shuffle="rows")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"read_parquet\(\) has no argument 'coloms'"):
        lockstep.data.read_parquet(tmp_path, coloms=["id"])


def test_the_files_it_is_read_from(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    dataset = lockstep.data.read_text(tmp_path)
    assert dataset.union(dataset).input_files() == [str(tmp_path / "a.txt")]
