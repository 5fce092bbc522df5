"""Directories named ``column=value`` add columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import lockstep.data
from lockstep.data import Dataset
from lockstep.data.datasource import Partitioning, PathPartitionFilter
from tests.data.datasets import column


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for year in (2023, 2024):
        for kind in ("a", "b%20c"):
            folder = tmp_path / f"year={year}" / f"kind={kind}"
            folder.mkdir(parents=True)
            pq.write_table(pa.table({"x": [year, 1]}), folder / "part.parquet")
            (folder / "part.csv").write_text(f"x\n{year}\n1\n")
    return tmp_path


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_directories_add_columns(kind: str, tree: Path) -> None:
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


def test_filters(tree: Path) -> None:
    def found(filters: str) -> Dataset:
        return lockstep.data.read_parquet(tree, filters=filters)

    newer = found("year == 2024")
    assert len(newer.input_files()) == 2  # the others are not even looked at
    assert newer.count() == 4
    both = found("year == 2024 and x > 1")
    assert (both.count(), both.take_all()[0]["x"]) == (2, 2024)
    assert found("year == 1999").count() == 0


def test_directories_that_differ(tree: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tree / "year=2024" / "stray.parquet")
    with pytest.raises(ValueError, match=r"stray.parquet' is in directories of year, and .*"):
        lockstep.data.read_parquet(tree)


def test_a_column_that_is_in_the_files_too(tmp_path: Path) -> None:
    (tmp_path / "x=7").mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x=7" / "a.parquet")
    assert column(lockstep.data.read_parquet(tmp_path), "x") == [1, 2]
    (tmp_path / "x=8").mkdir()
    pq.write_table(pa.table({"x": [2, 8]}), tmp_path / "x=8" / "a.parquet")
    assert column(lockstep.data.read_parquet(tmp_path, filters="x == 2"), "x") == [2, 2]
    assert lockstep.data.read_parquet(tmp_path, filters="x == 8").count() == 1


def test_directories_of_paths(tmp_path: Path) -> None:
    (tmp_path / "path=3").mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "path=3" / "a.parquet")
    for filters in (None, "path == 3", "x > 1"):
        with pytest.raises(ValueError, match=r"a.parquet' are named 'path=…'; rename that"):
            lockstep.data.read_parquet(tmp_path, include_paths=True, filters=filters)
    assert lockstep.data.read_parquet(tmp_path, filters="path == 3").count() == 2


def test_filters_that_do_not_fit_or_go_by_position(tree: Path) -> None:
    def found(filters: Any) -> Dataset:
        return lockstep.data.read_parquet(tree, filters=filters)

    with pytest.raises(ValueError, match="The filter does not fit the columns x, year, kind"):
        found(pc.field("year") == "new").take_all()
    assert column(found(pc.field(0) == 2023), "x") == [2023, 2023]
    assert found(pc.field(1) == 2024).count() == 4


def test_directories_without_names(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        for number in range(2):
            Image.new("RGB", (2, 2)).save(tmp_path / kind / f"{number}.png")
    where = Partitioning("dir", field_names=["class"], base_dir=str(tmp_path))
    dataset = lockstep.data.read_images(tmp_path, partitioning=where, include_paths=True)
    assert [row["class"] for row in dataset.take_all()] == ["cat", "cat", "dog", "dog"]
    assert dataset.select_columns(["class"]).take(1) == [{"class": "cat"}]
    some = lockstep.data.read_binary_files(
        tmp_path,
        partition_filter=PathPartitionFilter.of(
            lambda columns: columns["class"] == "dog",
            style="dir",
            base_dir=str(tmp_path),
            field_names=["class"],
        ),
    )
    assert some.count() == 2
    with pytest.raises(ValueError, match=r"names 2; give a base_dir"):
        lockstep.data.read_images(
            tmp_path, partitioning=Partitioning("dir", field_names=["a", "b"])
        )


def test_types_of_directories(tree: Path) -> None:
    where = Partitioning("hive", field_types={"year": str})
    assert lockstep.data.read_parquet(tree, partitioning=where).take(1)[0]["year"] == "2023"
    assert lockstep.data.read_parquet(tree, partitioning=None).columns() == ["x"]
    wrong = Partitioning("hive", field_types={"kind": int})
    with pytest.raises(ValueError, match=r"The directory 'a' of .* is no int"):
        lockstep.data.read_parquet(tree, partitioning=wrong)
    newer = PathPartitionFilter.of(
        lambda columns: columns["year"] == 2024, field_types={"year": int}
    )
    assert lockstep.data.read_parquet(tree, partition_filter=newer).count() == 4
    with pytest.raises(ValueError, match="leaves none of 4 files"):
        lockstep.data.read_parquet(tree, partition_filter=lambda paths: [])
    with pytest.raises(ValueError, match="expected 'hive' or 'dir'"):
        Partitioning("other")
    with pytest.raises(ValueError, match="needs field_names"):
        Partitioning("dir")
