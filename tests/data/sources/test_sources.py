"""Every source gives the rows that are in it, and says which file and column is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import lockstep.data
from lockstep.data import Dataset
from lockstep.errors import StorageError


def column(dataset: Dataset, name: str) -> list[Any]:
    return [row[name] for row in dataset.take_all()]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of lines are cut as if they were large."""
    monkeypatch.setattr("lockstep.data.sources.lines.BLOCK_BYTES", 100)


class TestPaths:
    def test_a_file_a_list_a_glob_a_directory(self, tmp_path: Path) -> None:
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

    def test_a_path_in_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("a.csv").write_text("x\n1\n")
        for path in ("a.csv", "*.csv", "."):
            assert column(lockstep.data.read_csv(path), "x") == [1]

    def test_what_is_not_there(self, tmp_path: Path) -> None:
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

    def test_paths_that_may_be_missing(self, tmp_path: Path) -> None:
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
    def test_a_column_of_paths(self, kind: str, tmp_path: Path) -> None:
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
    def test_a_column_of_paths_that_is_there_already(self, kind: str, tmp_path: Path) -> None:
        data = lockstep.data.from_items([{"path": "own", "x": i} for i in range(4)])
        getattr(data, f"write_{kind}")(tmp_path, num_rows_per_file=2)
        read = getattr(lockstep.data, f"read_{kind}")
        assert read(tmp_path, filters="path == 'own'").count() == 4
        for filters in (None, "path == 'own'", "x > 2"):
            with pytest.raises(
                ValueError, match=r"adds a column 'path', but '.*/part-0.*' has one"
            ):
                read(tmp_path, include_paths=True, filters=filters)

    def test_blocks_in_another_order_each_epoch(self, tmp_path: Path) -> None:
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

    def test_the_files_it_is_read_from(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("one\n")
        dataset = lockstep.data.read_text(tmp_path)
        assert dataset.union(dataset).input_files() == [str(tmp_path / "a.txt")]


class TestParquet:
    def test_rows_columns_and_row_groups(self, tmp_path: Path) -> None:
        table = pa.table({"x": range(10), "y": [str(i) for i in range(10)], "z": [0.5] * 10})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
        dataset = lockstep.data.read_parquet(tmp_path)
        assert (dataset.count(), dataset.num_blocks()) == (10, 3)
        assert dataset.to_arrow().equals(table)
        assert dataset.schema().equals(table.schema)
        assert lockstep.data.read_parquet(tmp_path, columns=["z", "x"]).columns() == ["z", "x"]
        assert dataset.select_columns(["y"]).take(1) == [{"y": "0"}]

    def test_only_the_columns_asked_for_are_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pq.write_table(pa.table({"x": [1], "y": [2], "z": [3]}), tmp_path / "a.parquet")
        asked = []
        read = pq.ParquetFile.read_row_group

        def listening(self: Any, group: int, columns: Any = None, **options: Any) -> Any:
            asked.append(columns)
            return read(self, group, columns=columns, **options)

        monkeypatch.setattr(pq.ParquetFile, "read_row_group", listening)
        dataset = lockstep.data.read_parquet(tmp_path).rename_columns({"z": "a"})
        assert dataset.drop_columns("x").select_columns(["a"]).take_all() == [{"a": 3}]
        train, _ = dataset.union(dataset).train_test_split(1)
        assert train.select_columns("y").take_all() == [{"y": 2}]
        assert asked == [["z"], ["y"]]

    def test_a_filter_and_columns_read_no_other_columns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import pyarrow.compute as pc

        table = pa.table({"x": range(5), "y z": range(5), "w": range(5), "s": [{"a": 1}] * 5})
        pq.write_table(table, tmp_path / "a.parquet")
        asked = []
        read = pq.ParquetFile.read_row_group

        def listening(self: Any, group: int, columns: Any = None, **options: Any) -> Any:
            asked.append(columns)
            return read(self, group, columns=columns, **options)

        monkeypatch.setattr(pq.ParquetFile, "read_row_group", listening)
        few = lockstep.data.read_parquet(tmp_path, columns=["w"], filters="x > 3")
        assert few.take_all() == [{"w": 4}]
        spaced = lockstep.data.read_parquet(tmp_path).filter(expr=pc.field("y z") > 2)
        assert spaced.filter(expr="x < 4").select_columns(["x"]).take_all() == [{"x": 3}]
        nested = lockstep.data.read_parquet(tmp_path).filter(expr=pc.field("s", "a") == 1)
        assert nested.select_columns(["x"]).count() == 5
        assert nested.select_columns(["x"]).take(1) == [{"x": 0}]
        assert asked == [["x", "w"], ["x", "y z"], table.column_names]

    def test_filters(self, tmp_path: Path) -> None:
        pq.write_table(
            pa.table({"x": range(100), "k": ["a", "b"] * 50}), tmp_path / "a", row_group_size=10
        )
        import pyarrow.compute as pc

        def found(filters: Any) -> Dataset:
            return lockstep.data.read_parquet(tmp_path / "a", filters=filters, columns=["x"])

        few = found("x >= 95 and k == 'a'")
        assert few.num_blocks() == 1  # the statistics rule out the other nine
        assert column(few, "x") == [96, 98]
        assert few.count() == 2
        assert column(found(pc.field("x") < 2), "x") == [0, 1]
        assert column(found([("x", "<", 30), ("k", "in", {"b"})]), "x") == list(range(1, 30, 2))
        assert column(found("x < 0"), "x") == []
        with pytest.raises(ValueError, match="does not fit the columns x, k"):
            found("q > 3")

    def test_files_that_differ(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"x": [1], "y": [1]}), tmp_path / "a.parquet")
        pq.write_table(pa.table({"x": [1], "y": ["1"]}), tmp_path / "b.parquet")
        pq.write_table(pa.table({"x": [1]}), tmp_path / "c.parquet")
        dataset = lockstep.data.read_parquet([tmp_path / "a.parquet", tmp_path / "b.parquet"])
        with pytest.raises(
            ValueError, match=r"'y' is string in '.*b.parquet' but int64 in '.*a.parquet'"
        ):
            dataset.count()
        dataset = lockstep.data.read_parquet([tmp_path / "c.parquet", tmp_path / "a.parquet"])
        with pytest.raises(ValueError, match=r"'y' is int64 in '.*a.parquet' but missing in"):
            dataset.prepare(1)
        assert lockstep.data.read_parquet(tmp_path, columns=["x"]).count() == 3

    def test_a_missing_column(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"x": [1], "y": [1]}), tmp_path / "a.parquet")
        with pytest.raises(KeyError, match=r"a.parquet' has no column 'q'; it has x, y"):
            lockstep.data.read_parquet(tmp_path, columns=["q"])
        with pytest.raises(KeyError, match="there is no column 'q'; there are x, y"):
            lockstep.data.read_parquet(tmp_path).select_columns(["q"])

    def test_a_file_that_is_no_parquet(self, tmp_path: Path) -> None:
        (tmp_path / "a.parquet").write_text("no")
        with pytest.raises(
            StorageError, match=r"Could not read '.*a.parquet': .*smaller than the minimum"
        ):
            lockstep.data.read_parquet(tmp_path)

    def test_a_file_that_is_damaged(self, tmp_path: Path) -> None:
        file = tmp_path / "a.parquet"
        pq.write_table(pa.table({"x": np.random.default_rng(0).random(10_000)}), file)
        data = bytearray(file.read_bytes())
        data[4:2000] = bytes(1996)
        file.write_bytes(data)
        with pytest.raises(StorageError, match=r"Could not read '.*a.parquet'"):
            list(lockstep.data.read_parquet(file).iter_batches())


class TestPartitions:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        for year in (2023, 2024):
            for kind in ("a", "b%20c"):
                folder = tmp_path / f"year={year}" / f"kind={kind}"
                folder.mkdir(parents=True)
                pq.write_table(pa.table({"x": [year, 1]}), folder / "part.parquet")
                (folder / "part.csv").write_text(f"x\n{year}\n1\n")
        return tmp_path

    @pytest.mark.parametrize("kind", ["parquet", "csv"])
    def test_directories_add_columns(self, kind: str, tree: Path) -> None:
        read = getattr(lockstep.data, f"read_{kind}")
        dataset = read(tree, file_extensions=[kind])
        assert [(f.name, str(f.type)) for f in dataset.schema()] == [
            ("x", "int64"),
            ("year", "int64"),
            ("kind", "string"),
        ]
        assert dataset.count() == 8
        assert dataset.take_all()[2] == {"x": 2023, "year": 2023, "kind": "b c"}
        assert all(row["x"] in (row["year"], 1) for row in dataset.random_shuffle().take_all())
        chosen = dataset.select_columns(["kind"])
        assert chosen.take(3) == [{"kind": "a"}, {"kind": "a"}, {"kind": "b c"}]
        assert column(read(tree, file_extensions=[kind], columns=["year"]), "year")[-1] == 2024
        shard = dataset.prepare(2, order="global").shard(1)
        assert [b["year"].tolist() for b in shard.iter_batches(batch_size=4)] == [
            [2023] * 2,
            [2024] * 2,
        ]
        pattern = f"{tree}/year=*/kind=a/*.{kind}"
        assert column(read(pattern), "year") == [2023, 2023, 2024, 2024]
        assert read(tree / "year=2023" / "kind=a" / f"part.{kind}").columns() == ["x"]

    def test_filters(self, tree: Path) -> None:
        def found(filters: str) -> Dataset:
            return lockstep.data.read_parquet(tree, filters=filters)

        newer = found("year == 2024")
        assert len(newer.input_files()) == 2  # the others are not even looked at
        assert newer.count() == 4
        both = found("year == 2024 and x > 1")
        assert (both.count(), both.take_all()[0]["x"]) == (2, 2024)
        assert found("year == 1999").count() == 0

    def test_directories_that_differ(self, tree: Path) -> None:
        pq.write_table(pa.table({"x": [1]}), tree / "year=2024" / "stray.parquet")
        with pytest.raises(ValueError, match=r"stray.parquet' is in directories of year, and .*"):
            lockstep.data.read_parquet(tree)

    def test_a_column_that_is_in_the_files_too(self, tmp_path: Path) -> None:
        (tmp_path / "x=7").mkdir()
        pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x=7" / "a.parquet")
        assert column(lockstep.data.read_parquet(tmp_path), "x") == [1, 2]
        (tmp_path / "x=8").mkdir()
        pq.write_table(pa.table({"x": [2, 8]}), tmp_path / "x=8" / "a.parquet")
        assert column(lockstep.data.read_parquet(tmp_path, filters="x == 2"), "x") == [2, 2]
        assert lockstep.data.read_parquet(tmp_path, filters="x == 8").count() == 1

    def test_directories_of_paths(self, tmp_path: Path) -> None:
        (tmp_path / "path=3").mkdir()
        pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "path=3" / "a.parquet")
        for filters in (None, "path == 3", "x > 1"):
            with pytest.raises(ValueError, match=r"a.parquet' are named 'path=…'; rename that"):
                lockstep.data.read_parquet(tmp_path, include_paths=True, filters=filters)
        assert lockstep.data.read_parquet(tmp_path, filters="path == 3").count() == 2

    def test_filters_that_do_not_fit_or_go_by_position(self, tree: Path) -> None:
        def found(filters: Any) -> Dataset:
            return lockstep.data.read_parquet(tree, filters=filters)

        with pytest.raises(ValueError, match="The filter does not fit the columns x, year, kind"):
            found(pc.field("year") == "new").take_all()
        assert column(found(pc.field(0) == 2023), "x") == [2023, 2023]
        assert found(pc.field(1) == 2024).count() == 4


class TestCsv:
    def test_blocks_end_with_lines(self, tmp_path: Path, small_blocks: None) -> None:
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
    def test_empty_lines_are_no_rows(self, tmp_path: Path, small_blocks: None, end: str) -> None:
        lines = ["x"]
        for i in range(100):
            lines += [str(i)] + [""] * (i % 3)
        (tmp_path / "a.csv").write_text(end.join(lines), newline="")
        dataset = lockstep.data.read_csv(tmp_path / "a.csv")
        assert dataset.count() == 100
        shard = dataset.prepare(1).shard(0)
        assert [i for b in shard.iter_batches() for i in b["x"].tolist()] == list(range(100))

    def test_types_are_found_from_samples(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lockstep.data.sources.csv._SAMPLE", 1000)
        monkeypatch.setattr("lockstep.data.sources.csv._LATER_SAMPLE", 500)
        monkeypatch.setattr("lockstep.data.sources.lines.BLOCK_BYTES", 1000)
        rows = [f"{i},{i},{i}" for i in range(1000)]
        rows[990:] = [f"{i},{i}.5,word" for i in range(990, 1000)]
        (tmp_path / "a.csv").write_text("i,f,s\n" + "\n".join(rows))
        dataset = lockstep.data.read_csv(tmp_path / "a.csv")
        assert [str(field.type) for field in dataset.schema()] == ["int64", "double", "string"]
        assert dataset.take_all()[-1] == {"i": 999, "f": 999.5, "s": "word"}

    def test_a_type_no_sample_has_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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

    def test_files_that_differ(self, tmp_path: Path) -> None:
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

    def test_line_breaks_inside_values(self, tmp_path: Path, small_blocks: None) -> None:
        rows = "".join(f'{i},"a\nb"\n' for i in range(50))
        (tmp_path / "a.csv").write_text("x,y\n" + rows)
        with pytest.raises(StorageError, match=r"a.csv': .*newlines_in_values=True"):
            lockstep.data.read_csv(tmp_path / "a.csv").take_all()
        options = pyarrow.csv.ParseOptions(newlines_in_values=True)
        dataset = lockstep.data.read_csv(tmp_path / "a.csv", parse_options=options)
        assert (dataset.count(), dataset.num_blocks()) == (50, 1)
        assert dataset.take(1) == [{"x": 0, "y": "a\nb"}]

    def test_arrow_options(self, tmp_path: Path, small_blocks: None) -> None:
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

    def test_compressed(self, tmp_path: Path) -> None:
        with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
            file.write("x\n" + "\n".join(map(str, range(1000))))
        dataset = lockstep.data.read_csv(tmp_path / "a.csv.gz")
        assert (dataset.count(), dataset.num_blocks()) == (1000, 1)
        assert column(dataset, "x") == list(range(1000))
        (tmp_path / "b.csv.gz").write_text("no")
        with pytest.raises(StorageError, match=r"Could not read '.*b.csv.gz'"):
            lockstep.data.read_csv(tmp_path / "b.csv.gz").take_all()

    def test_an_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("")
        with pytest.raises(StorageError, match=r"a.csv': it is empty, without a header"):
            lockstep.data.read_csv(tmp_path / "a.csv").count()
        (tmp_path / "b.csv").write_text("x,y\n")
        dataset = lockstep.data.read_csv(tmp_path / "b.csv")
        assert (dataset.count(), dataset.columns()) == (0, ["x", "y"])

    def test_a_file_that_changes_while_it_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("x\n1\n2\n")
        dataset = lockstep.data.read_csv(tmp_path / "a.csv")
        assert dataset.count() == 2
        (tmp_path / "a.csv").write_text("x\n123\n")
        with pytest.raises(ValueError, match=r"a.csv' has 1 rows where 2 were counted"):
            dataset.take_all()

    def test_filters_and_columns(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n3,c\n")
        dataset = lockstep.data.read_csv(tmp_path / "a.csv", filters="x > 1", columns=["y"])
        assert dataset.take_all() == [{"y": "b"}, {"y": "c"}]
        with pytest.raises(KeyError, match=r"a.csv' has no column 'q'; it has x, y"):
            lockstep.data.read_csv(tmp_path / "a.csv", columns=["y", "q"])


class TestJson:
    def test_a_row_a_line(self, tmp_path: Path, small_blocks: None) -> None:
        rows = [{"x": i, "s": {"t": [i, i]}} for i in range(100)]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        dataset = lockstep.data.read_json(tmp_path)
        assert dataset.num_blocks() > 10
        assert dataset.take_all() == rows
        assert dataset.count() == 100
        assert dataset.select_columns("x").take(1) == [{"x": 0}]

    def test_a_list_of_rows(self, tmp_path: Path) -> None:
        rows = [{"x": 1, "y": "a"}, {"x": 2, "y": None}]
        (tmp_path / "a.json").write_text(json.dumps(rows, indent=2))
        assert lockstep.data.read_json(tmp_path).take_all() == rows
        with gzip.open(tmp_path / "b.json.gz", "wt") as file:
            json.dump(rows, file)
        assert lockstep.data.read_json(tmp_path).count() == 4

    def test_what_cannot_be_read(self, tmp_path: Path) -> None:
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

    def test_files_that_differ(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text('{"x": 1}\n')
        (tmp_path / "b.json").write_text('{"x": "a"}\n')
        with pytest.raises(ValueError, match=r"'x' is string in '.*b.json' but int64 in"):
            lockstep.data.read_json(tmp_path).count()


class TestText:
    def test_lines(self, tmp_path: Path, small_blocks: None) -> None:
        lines = [f"line {i} ä" if i % 5 else "" for i in range(100)]
        (tmp_path / "a.txt").write_text("\n".join(lines))
        dataset = lockstep.data.read_text(tmp_path)
        assert column(dataset, "text") == [line for line in lines if line]
        assert dataset.count() == 80
        dataset = lockstep.data.read_text(tmp_path, drop_empty_lines=False)
        assert column(dataset, "text") == lines
        assert dataset.count() == 100

    def test_encodings(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes("ä\r\nb\r\n".encode("utf-16"))
        dataset = lockstep.data.read_text(tmp_path, encoding="utf-16")
        assert column(dataset, "text") == ["ä", "b"]
        with pytest.raises(StorageError, match=r"Could not read '.*a.txt': 'utf-8' codec"):
            lockstep.data.read_text(tmp_path).take_all()


class TestWholeFiles:
    def test_numpy(self, tmp_path: Path) -> None:
        array = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
        np.save(tmp_path / "a.npy", array)
        np.save(tmp_path / "b.npy", array[:1] + 100)
        dataset = lockstep.data.read_numpy(tmp_path)
        assert (dataset.count(), dataset.num_blocks()) == (5, 2)
        batch = dataset.take_batch(5)["data"]
        np.testing.assert_array_equal(batch, np.concatenate([array, array[:1] + 100]))
        assert batch.dtype == np.float32
        paths = column(lockstep.data.read_numpy(tmp_path, include_paths=True), "path")
        assert paths[-1] == str(tmp_path / "b.npy")

    def test_numpy_files_that_differ(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.zeros((2, 3)))
        np.save(tmp_path / "b.npy", np.zeros((2, 4)))
        with pytest.raises(ValueError, match=r"rows of float64 \[4\] in '.*b.npy' but of"):
            lockstep.data.read_numpy(tmp_path).count()
        (tmp_path / "c.npy").write_text("no")
        with pytest.raises(StorageError, match=r"Could not read '.*c.npy'"):
            lockstep.data.read_numpy(tmp_path / "c.npy").count()

    def test_images(self, tmp_path: Path) -> None:
        image = pytest.importorskip("PIL.Image")
        pixels = np.random.default_rng(0).integers(0, 255, (6, 4, 3), dtype=np.uint8)
        image.fromarray(pixels).save(tmp_path / "a.png")
        image.fromarray(pixels[:2]).save(tmp_path / "b.png")
        (tmp_path / "notes.txt").write_text("no image")
        rows = lockstep.data.read_images(tmp_path, include_paths=True).take_all()
        np.testing.assert_array_equal(rows[0]["image"], pixels)
        np.testing.assert_array_equal(rows[1]["image"], pixels[:2])
        assert rows[1]["path"] == str(tmp_path / "b.png")
        batch = lockstep.data.read_images(tmp_path, size=(8, 5), mode="L").take_batch(2)
        assert batch["image"].shape == (2, 8, 5)
        (tmp_path / "c.png").write_text("no")
        with pytest.raises(StorageError, match=r"Could not read '.*c.png': it is no image"):
            lockstep.data.read_images(tmp_path).take_all()
        with pytest.raises(ValueError, match=r"give \(height, width\)"):
            lockstep.data.read_images(tmp_path, size=(3,))  # type: ignore[arg-type]

    def test_bytes(self, tmp_path: Path) -> None:
        for number in range(130):
            (tmp_path / f"{number:03d}").write_bytes(bytes([number]) * number)
        dataset = lockstep.data.read_binary_files(tmp_path, include_paths=True)
        assert (dataset.count(), dataset.num_blocks()) == (130, 3)
        rows = dataset.take_all()
        assert rows[129] == {"bytes": b"\x81" * 129, "path": str(tmp_path / "129")}
        assert dataset.select_columns("path").take(1) == [{"path": str(tmp_path / "000")}]


class TestMemory:
    def test_items(self) -> None:
        assert lockstep.data.from_items([1, 2]).take_all() == [{"item": 1}, {"item": 2}]
        rows = [{"a": 1, "b": "x"}, {"a": 2}]
        assert lockstep.data.from_items(rows).take_all() == [rows[0], {"a": 2, "b": None}]
        assert lockstep.data.from_items(range(100), override_num_blocks=7).num_blocks() == 7
        assert lockstep.data.from_items([]).count() == 0
        arrays = lockstep.data.from_items([{"x": np.zeros((2, 2))}] * 3)
        assert arrays.take_batch(3)["x"].shape == (3, 2, 2)
        with pytest.raises(ValueError, match="override_num_blocks=0"):
            lockstep.data.from_items([1], override_num_blocks=0)

        with pytest.raises(ValueError, match=r"from_items, column 'b': Could not convert 'x'"):
            lockstep.data.from_items([{"a": 1, "b": 1}, {"a": 1, "b": "x"}])
        assert lockstep.data.from_items(range(9), parallelism=3).num_blocks() == 3

    def test_pandas(self) -> None:
        import pandas as pd

        with pytest.raises(ValueError, match=r"from_pandas, column 'b': Could not convert 'x'"):
            lockstep.data.from_pandas(pd.DataFrame({"a": [1, 2], "b": [1, "x"]}))
        with pytest.raises(TypeError, match=r"from_pandas\(\) got 3; give a data frame"):
            lockstep.data.from_pandas([3])  # type: ignore[list-item]
        frame = pd.DataFrame({"x": [1, 2], "s": ["a", None]}, index=[5, 6])
        dataset = lockstep.data.from_pandas(frame)
        pd.testing.assert_frame_equal(dataset.to_pandas(), frame.reset_index(drop=True))
        assert lockstep.data.from_pandas([frame, frame]).count() == 4
        with pytest.raises(ValueError, match="Table 1 has the columns y, and table 0 has x, s"):
            lockstep.data.from_pandas([frame, pd.DataFrame({"y": [1]})])
        with pytest.raises(ValueError, match="give at least one data frame"):
            lockstep.data.from_pandas([])

    def test_arrow_without_a_copy(self) -> None:
        table = pa.table({"x": np.arange(1000)})

        class Frame:
            """A frame of another library."""

            def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
                return table.__arrow_c_stream__(requested_schema)

        address = table["x"].chunk(0).buffers()[1].address
        for given in (table, Frame(), table.to_batches()[0], [table], table.to_reader()):
            got = lockstep.data.from_arrow(given).take_batch(1000, batch_format="pyarrow")
            assert got["x"].chunk(0).buffers()[1].address == address
            assert got.equals(table)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        assert lockstep.data.from_arrow(sink.getvalue().to_pybytes()).count() == 1000
        with pytest.raises(TypeError, match="from_arrow\\(\\) got a int"):
            lockstep.data.from_arrow(3)

    def test_arrow_views_are_made_plain(self) -> None:
        if not hasattr(pa, "string_view"):
            pytest.skip("this Arrow has no views")
        views = pa.array(["a", None, "b"], pa.string_view())
        dataset = lockstep.data.from_arrow(pa.table({"s": views, "x": [1, 2, 3]}))
        assert [str(field.type) for field in dataset.schema()] == ["large_string", "int64"]
        assert dataset.sort("s", descending=True).take(1) == [{"s": "b", "x": 3}]
        assert dataset.filter(expr="s == 'a'").count() == 1

    def test_numpy(self) -> None:
        array = np.arange(12.0).reshape(4, 3)
        np.testing.assert_array_equal(lockstep.data.from_numpy(array).to_numpy("data"), array)
        both = lockstep.data.from_numpy([array, array])
        assert both.to_numpy("data").shape == (8, 3)
        named = lockstep.data.from_numpy({"a": array, "b": np.arange(4)})
        assert named.take(1)[0]["b"] == 0
        with pytest.raises(ValueError, match=r"different lengths: \{'a': 4, 'b': 3\}"):
            lockstep.data.from_numpy({"a": array, "b": np.arange(3)})

    def test_ranges(self) -> None:
        assert lockstep.data.range(3).take_all() == [{"id": 0}, {"id": 1}, {"id": 2}]
        assert lockstep.data.range(100, override_num_blocks=8).num_blocks() == 8
        assert lockstep.data.range(0).count() == 0
        batch = lockstep.data.range_tensor(3, shape=(2, 2)).take_batch(3)["data"]
        np.testing.assert_array_equal(batch, np.arange(3)[:, None, None] * np.ones((1, 2, 2)))
        with pytest.raises(ValueError, match=r"range\(-1\)"):
            lockstep.data.range(-1)

    def test_torch(self) -> None:
        import torch
        from torch.utils.data import Dataset as TorchDataset
        from torch.utils.data import IterableDataset, TensorDataset

        x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
        dataset = lockstep.data.from_torch(TensorDataset(x, y))
        batch = next(iter(dataset.iter_torch_batches(batch_size=6)))
        assert torch.equal(batch["item_0"], x)
        assert torch.equal(batch["item_1"], y)

        class Dicts(TorchDataset[dict[str, int]]):
            def __len__(self) -> int:
                return 3000

            def __getitem__(self, place: int) -> dict[str, int]:
                return {"x": place}

        dataset = lockstep.data.from_torch(Dicts())
        assert (dataset.count(), dataset.num_blocks()) == (3000, 3)
        assert column(dataset, "x") == list(range(3000))

        class Stream(IterableDataset[int]):
            def __iter__(self) -> Any:
                return iter(range(5))

        assert column(lockstep.data.from_torch(Stream()), "item") == list(range(5))

    def test_huggingface(self) -> None:
        datasets = pytest.importorskip("datasets")
        source = datasets.Dataset.from_dict({"x": list(range(10))})
        assert column(lockstep.data.from_huggingface(source), "x") == list(range(10))
        chosen = source.select([3, 1])
        assert column(lockstep.data.from_huggingface(chosen), "x") == [3, 1]
        assert (
            lockstep.data.from_huggingface(source, parallelism=4, concurrency=2).num_blocks() == 4
        )
        assert lockstep.data.from_huggingface(chosen, parallelism=2).num_blocks() == 2
        with pytest.raises(ValueError, match="choose one of them"):
            lockstep.data.from_huggingface(datasets.DatasetDict({"train": source}))
