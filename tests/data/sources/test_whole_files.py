"""Files that are read as one value: arrays, images, bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lockstep.data
from lockstep.errors import StorageError
from tests.data.datasets import column


def test_numpy(tmp_path: Path) -> None:
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


def test_numpy_files_that_differ(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.zeros((2, 4)))
    with pytest.raises(ValueError, match=r"rows of float64 \[4\] in '.*b.npy' but of"):
        lockstep.data.read_numpy(tmp_path).count()
    (tmp_path / "c.npy").write_text("no")
    with pytest.raises(StorageError, match=r"Could not read '.*c.npy'"):
        lockstep.data.read_numpy(tmp_path / "c.npy").count()


def test_images(tmp_path: Path) -> None:
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


def test_bytes(tmp_path: Path) -> None:
    for number in range(130):
        (tmp_path / f"{number:03d}").write_bytes(bytes([number]) * number)
    dataset = lockstep.data.read_binary_files(tmp_path, include_paths=True)
    assert (dataset.count(), dataset.num_blocks()) == (130, 3)
    rows = dataset.take_all()
    assert rows[129] == {"bytes": b"\x81" * 129, "path": str(tmp_path / "129")}
    assert dataset.select_columns("path").take(1) == [{"path": str(tmp_path / "000")}]
