"""Names of files that a ``FilenameProvider`` chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

import lockstep.data
from lockstep.data.datasource import FilenameProvider
from tests.data.datasets import blocks, column


class Named(FilenameProvider):
    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        return f"mine_{task_index}.{self.file_format}"


class Same(FilenameProvider):
    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        return "same.csv"


class Rows(FilenameProvider):
    def get_filename_for_row(self, row: dict[str, Any], *args: Any) -> str:
        return f"{row['name']}.png"


class Wrong(FilenameProvider):
    def get_filename_for_block(self, *args: Any) -> str:
        return "a/b"


def test_names_of_files(tmp_path: Path) -> None:
    dataset = blocks(6)
    names = dataset.write_csv(
        tmp_path / "csv", filename_provider=Named(file_format="csv"), num_rows_per_file=3
    )
    assert names == ["mine_0.csv", "mine_1.csv"]
    assert lockstep.data.read_csv(tmp_path / "csv").count() == 6
    images = lockstep.data.from_items(
        [{"name": name, "image": np.zeros((2, 2, 3), np.uint8)} for name in "ab"]
    )
    assert images.write_images(tmp_path / "i", "image", filename_provider=Rows()) == [
        "a.png",
        "b.png",
    ]
    default = FilenameProvider("data", "json").get_filename_for_block(None, "w", 3, 0)
    assert default == "data_w_000003.json"
    with pytest.raises(ValueError, match="Wrong returned 'a/b'"):
        dataset.write_json(tmp_path / "j", filename_provider=Wrong())
    with pytest.raises(TypeError, match="filename_provider='x'"):
        dataset.write_json(tmp_path / "j", filename_provider="x")  # type: ignore[arg-type]


def test_a_write_with_chosen_names_keeps_earlier_files(tmp_path: Path) -> None:
    named = Named(file_format="csv")
    (tmp_path / "folder.csv").mkdir()
    assert blocks(4).write_csv(tmp_path, filename_provider=named) == ["mine_0.csv"]
    assert blocks(3).write_csv(tmp_path, filename_provider=named) == ["mine_1.csv"]
    assert lockstep.data.read_csv(tmp_path).count() == 7
    assert blocks(2).write_csv(tmp_path, filename_provider=named, mode="ignore") == []
    with pytest.raises(FileExistsError, match=r"has 'mine_0.csv' of an earlier write"):
        blocks(2).write_csv(tmp_path, filename_provider=named, mode="error")
    assert lockstep.data.read_csv(tmp_path).count() == 7
    # The rows come from the files that are replaced.
    names = lockstep.data.read_csv(tmp_path).write_csv(
        tmp_path, filename_provider=named, num_rows_per_file=2, mode="overwrite"
    )
    assert names == [f"mine_{n}.csv" for n in range(4)]
    assert column(lockstep.data.read_csv(tmp_path)) == [0, 1, 2, 3, 0, 1, 2]
    blocks(2).write_csv(tmp_path, filename_provider=Same(), mode="overwrite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.csv", "same.csv"]


def test_a_chosen_name_that_is_taken(tmp_path: Path) -> None:
    taken = "has 'same.csv' already; the filename_provider must return another name"
    for mode in ("append", "overwrite"):
        with pytest.raises(FileExistsError, match=taken):
            blocks(4).write_csv(
                tmp_path / mode, filename_provider=Same(), num_rows_per_file=2, mode=mode
            )
    blocks(4).write_csv(tmp_path, filename_provider=Same())
    with pytest.raises(FileExistsError, match=taken):
        blocks(3).write_csv(tmp_path, filename_provider=Same())
    assert (tmp_path / "same.csv").read_text().count("\n") == 5


def test_chosen_names_in_partitions(tmp_path: Path) -> None:
    rows = lockstep.data.from_items([{"k": n % 2, "n": n} for n in range(4)])
    named = Named(file_format="parquet")
    for mode, count in (("append", 4), ("append", 8), ("overwrite", 4)):
        rows.write_parquet(tmp_path, partition_cols=["k"], filename_provider=named, mode=mode)
        assert lockstep.data.read_parquet(tmp_path).count() == count
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))
    assert files == ["k=0/mine_0.parquet", "k=1/mine_0.parquet"]
    assert sorted(column(lockstep.data.read_parquet(tmp_path), "n")) == [0, 1, 2, 3]


@pytest.mark.parametrize("remote", [False, True])
def test_writes_at_the_same_time_that_choose_the_same_name(remote: bool, tmp_path: Path) -> None:
    place: dict[str, Any] = {"path": tmp_path}
    if remote:
        place = {"path": "", "filesystem": SubTreeFileSystem(str(tmp_path), LocalFileSystem())}

    def meanwhile(batch: dict[str, Any]) -> dict[str, Any]:
        blocks(7).write_csv(**place, filename_provider=Same())
        return batch

    outer = lockstep.data.range(5, override_num_blocks=1).map_batches(meanwhile)
    with pytest.raises(FileExistsError, match=r"has 'same\.csv' already"):
        outer.write_csv(**place, filename_provider=Same())
    assert [path.name for path in tmp_path.iterdir()] == ["same.csv"]
    assert lockstep.data.read_csv(tmp_path).count() == 7
