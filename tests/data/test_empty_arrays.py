"""Arrays of width 0, as in a batch in which no image has a box: everywhere that rows go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep.data
from lockstep.data import Dataset
from tests.data.datasets import blocks

SHAPES = [(0,), (0, 4), (4, 0)]


def dataset(shape: tuple[int, ...], rows: int = 5) -> Dataset:
    return lockstep.data.from_numpy({"id": np.arange(rows), "x": np.zeros((rows, *shape))})


def shapes(rows: Dataset) -> list[tuple[int, ...]]:
    return [np.shape(row["x"]) for row in rows.take_all()]


@pytest.mark.parametrize("shape", SHAPES)
class TestIn:
    def test_made(self, shape: tuple[int, ...]) -> None:
        array = np.zeros((3, *shape), np.float32)
        made = [
            lockstep.data.from_items([{"x": row} for row in array]),
            lockstep.data.from_numpy(array, column="x"),
            lockstep.data.from_torch([{"x": row} for row in array]),
            lockstep.data.range_tensor(3, shape=shape).rename_columns(["x"]),
            lockstep.data.from_pandas(dataset(shape, 3).to_pandas()),
        ]
        for found in made:
            assert shapes(found) == [shape] * 3
            assert found.to_numpy("x").shape == (3, *shape)

    def test_mapped(self, shape: tuple[int, ...]) -> None:
        def add(batch: dict[str, Any]) -> dict[str, Any]:
            return {"x": np.zeros((len(batch["id"]), *shape))}

        assert shapes(blocks(5).map_batches(add, batch_size=1)) == [shape] * 5
        assert shapes(blocks(5).map(lambda row: {"x": np.zeros(shape)})) == [shape] * 5

    def test_read(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.zeros((3, *shape)))
        found = lockstep.data.read_numpy(tmp_path).take_all()
        assert [row["data"].shape for row in found] == [shape] * 3


@pytest.mark.parametrize("shape", SHAPES)
class TestOut:
    def test_batches(self, shape: tuple[int, ...]) -> None:
        shuffled = dataset(shape).random_shuffle(seed=1)
        for rows in (dataset(shape), shuffled, shuffled.streaming_split(1)[0]):
            for batches in (
                rows.iter_batches(batch_size=2),
                rows.iter_torch_batches(batch_size=2),
                rows.iter_batches(batch_size=2, local_shuffle_buffer_size=3),
            ):
                found = [tuple(batch["x"].shape) for batch in batches]
                assert found == [(2, *shape), (2, *shape), (1, *shape)]
        frames = list(dataset(shape).iter_batches(batch_size=2, batch_format="pandas"))
        assert [value.shape for frame in frames for value in frame["x"]] == [shape] * 5

    def test_parquet(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        dataset(shape).write_parquet(tmp_path, num_rows_per_file=2)
        found = lockstep.data.read_parquet(tmp_path)
        assert found.to_numpy("x").shape == (5, *shape)
        first = next(iter(found.iter_torch_batches(batch_size=3)))
        assert tuple(first["x"].shape) == (3, *shape)

    def test_json(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        dataset(shape).write_json(tmp_path)
        assert lockstep.data.read_json(tmp_path).count() == 5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.filter(expr="id > 0"),
        lambda d: d.sort("id", descending=True),
        lambda d: d.union(d),
        lambda d: d.limit(2),
        lambda d: d.split(2)[1],
        lambda d: d.random_sample(0.5, seed=1),
        lambda d: d.repartition(3).materialize(),
        lambda d: d.drop_columns("id").zip(d.select_columns("id")),
        lambda d: d.map_batches(lambda batch: batch, batch_size=2),
        lambda d: d.map_batches(lambda frame: frame, batch_format="pandas"),
        lambda d: d.map_batches(lambda tensors: tensors, batch_format="torch"),
    ],
)
def test_changed(change: Callable[[Dataset], Dataset], shape: tuple[int, ...]) -> None:
    changed = change(dataset(shape))
    assert set(shapes(changed)) == {shape}


def test_beside_others() -> None:
    """The next batch has an image with boxes."""
    some = blocks(6, 3).map_batches(
        lambda batch: {"x": np.ones((len(batch["id"]), batch["id"][0], 4))}
    )
    expected = [(0, 4)] * 2 + [(2, 4)] * 2 + [(4, 4)] * 2
    assert shapes(some) == shapes(some.materialize()) == expected
    (batch,) = some.iter_batches(batch_size=6)
    assert [boxes.shape for boxes in batch["x"]] == expected
    assert len(shapes(some.random_shuffle(seed=1))) == 6
    both = dataset((0, 2), 1).union(dataset((3, 2), 1))
    assert shapes(both) == [(0, 2), (3, 2)]
    # np.array([]) is of floats
    rows = [{"x": np.array([])}, {"x": np.array([1, 2])}, {"x": np.ones((1, 2), int)}]
    assert shapes(lockstep.data.from_items(rows)) == [(0,), (2,), (1, 2)]
