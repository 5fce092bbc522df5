"""Behaviour that scripts for Ray Data rely on, beyond the names."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep.data
from lockstep.data.expressions import col
from tests.data.datasets import blocks, column


class TestAsync:
    def test_calls_wait_together_and_results_keep_their_order(self) -> None:
        waiting: list[int] = []
        most: list[int] = []

        async def slow(batch: dict[str, Any]) -> dict[str, Any]:
            waiting.append(1)
            most.append(len(waiting))
            await asyncio.sleep(0.001 * (3 - batch["id"][0] % 3))
            waiting.pop()
            return {"id": batch["id"] + 1}

        assert column(blocks(12, 1).map_batches(slow, batch_size=1)) == list(range(1, 13))
        assert max(most) == 12
        most.clear()
        limited = blocks(12, 1).map_batches(slow, batch_size=1, max_concurrency=2)
        assert column(limited) == list(range(1, 13))
        assert max(most) == 2

    def test_classes_keep_their_loop(self) -> None:
        class Client:
            def __init__(self) -> None:
                self.loops: set[int] = set()

            async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
                self.loops.add(id(asyncio.get_running_loop()))
                return {"loops": len(self.loops)}

        assert set(column(blocks(8).map(Client), "loops")) == {1}

    def test_generators(self) -> None:
        async def halves(batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
            for part in np.array_split(batch["id"], 2):
                yield {"id": part}

        async def twice(row: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
            yield row
            yield row

        def both(row: dict[str, Any]) -> Iterator[Any]:
            yield row
            yield [row, row]

        assert column(blocks(4, 1).map_batches(halves)) == [0, 1, 2, 3]
        assert column(blocks(2).flat_map(twice)) == [0, 0, 1, 1]
        assert column(blocks(2).flat_map(both)) == [0, 0, 0, 1, 1, 1]

    def test_inside_a_running_loop_and_errors(self) -> None:
        async def fails(row: dict[str, Any]) -> dict[str, Any]:
            raise KeyError(f"row {row['id']}")

        async def even(row: dict[str, Any]) -> bool:
            return bool(row["id"] % 2 == 0)

        async def notebook() -> None:
            assert column(blocks(2).filter(even)) == [0]
            with pytest.raises(KeyError, match="row 0"):
                blocks(2).map(fails).take_all()

        asyncio.run(notebook())
        with pytest.raises(ValueError, match="max_concurrency=0"):
            blocks(2).map(fails, max_concurrency=0)


def test_no_columns() -> None:
    dataset = blocks(6)
    assert dataset.select_columns([]).count() == 6
    assert dataset.select_columns([]).take_all() == [{}] * 6
    assert column(dataset.drop_columns([])) == list(range(6))


class TestSplits:
    def test_stratified(self) -> None:
        rows = [{"k": "ab"[n % 5 == 0], "v": n} for n in range(50)]
        dataset = lockstep.data.from_items(rows, override_num_blocks=3)
        for shuffle in (False, True):
            train, test = dataset.train_test_split(0.2, stratify="k", shuffle=shuffle, seed=1)
            assert Counter(column(test, "k")) == {"a": 8, "b": 2}
            assert Counter(column(train, "k")) == {"a": 32, "b": 8}
            assert sorted(column(train, "v") + column(test, "v")) == list(range(50))
        train, test = dataset.train_test_split(7, stratify="k")
        assert (train.count(), test.count()) == (43, 7)
        with pytest.raises(KeyError, match="train_test_split: there is no column 'q'"):
            dataset.train_test_split(0.2, stratify="q")

    def test_streaming(self) -> None:
        train, test = blocks(1000).streaming_train_test_split(0.3, seed=1)
        assert sorted(column(train) + column(test)) == list(range(1000))
        assert 250 < test.count() < 350
        train, test = blocks(1000).streaming_train_test_split(
            0.3, split_type="hash", hash_column="id"
        )
        assert sorted(column(train) + column(test)) == list(range(1000))
        assert 250 < test.count() < 350
        more = blocks(2000).streaming_train_test_split(0.3, split_type="hash", hash_column="id")
        assert set(column(test)) <= set(column(more[1]))
        with pytest.raises(ValueError, match="give a fraction between 0 and 1"):
            blocks(10).streaming_train_test_split(3)
        with pytest.raises(ValueError, match="'hash' with a hash_column"):
            blocks(10).streaming_train_test_split(0.5, split_type="hash")


class TestBlocks:
    def sizes(self, dataset: lockstep.data.Dataset) -> list[int]:
        return [unit.rows or 0 for unit in dataset._counted()[0].units]

    def test_boundaries_of_a_sort(self) -> None:
        dataset = blocks(10).random_shuffle(seed=1)
        up = dataset.sort("id", boundaries=[3, 8])
        assert (self.sizes(up), column(up)) == ([3, 5, 2], list(range(10)))
        down = dataset.sort("id", descending=True, boundaries=[8, 3])
        assert (self.sizes(down), column(down)) == ([2, 5, 3], list(range(9, -1, -1)))

    def test_exact_blocks(self) -> None:
        exact = blocks(10).repartition(target_num_rows_per_block=4, strict=True)
        assert (self.sizes(exact), column(exact)) == ([4, 4, 2], list(range(10)))
        assert self.sizes(blocks(10).repartition(3, strict=True)) == [4, 4, 2]

    def test_blocks_by_key(self) -> None:
        rows = [{"k": n % 3, "v": n} for n in range(12)]
        dataset = lockstep.data.from_items(rows).repartition(2, keys=["k"])
        assert self.sizes(dataset) == [8, 4]
        assert sorted(column(dataset, "v")) == list(range(12))
        with pytest.raises(KeyError, match="repartition: there is no column 'q'"):
            blocks(3).repartition(2, keys=["q"]).take_all()


class TestWrites:
    def test_partitions(self, tmp_path: Path) -> None:
        rows = [
            {"k": "a b", "n": 1, "v": 1},
            {"k": None, "n": 2, "v": 2},
            {"k": "a b", "n": 1, "v": 3},
        ]
        names = lockstep.data.from_items(rows).write_parquet(tmp_path, partition_cols=["k", "n"])
        assert [Path(name).parent.as_posix() for name in names] == [
            "k=a%20b/n=1",
            "k=__HIVE_DEFAULT_PARTITION__/n=2",
        ]
        read = lockstep.data.read_parquet(tmp_path)
        assert sorted(read.take_all(), key=lambda row: row["v"]) == rows
        assert column(lockstep.data.read_parquet(tmp_path, filter=col("n") == 2), "v") == [2]
        lockstep.data.from_items(rows[:1]).write_parquet(
            tmp_path, partition_cols=["k", "n"], mode="overwrite"
        )
        assert column(lockstep.data.read_parquet(tmp_path), "v") == [1]

    def test_rows_per_file(self, tmp_path: Path) -> None:
        assert len(blocks(10).write_parquet(tmp_path, max_rows_per_file=4)) == 3

    def test_arrays(self, tmp_path: Path) -> None:
        tensors = lockstep.data.range_tensor(5, shape=(2, 2))
        assert len(tensors.write_numpy(tmp_path, column="data", num_rows_per_file=3)) == 2
        np.testing.assert_array_equal(
            lockstep.data.read_numpy(tmp_path).to_numpy("data"), tensors.to_numpy("data")
        )
        with pytest.raises(KeyError, match="write_numpy: there is no column 'q'"):
            tensors.write_numpy(tmp_path, column="q")

    def test_images(self, tmp_path: Path) -> None:
        pytest.importorskip("PIL")
        images = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
        names = lockstep.data.from_numpy(images, column="image").write_images(tmp_path, "image")
        assert len(names) == 2
        np.testing.assert_array_equal(lockstep.data.read_images(tmp_path).to_numpy("image"), images)


def test_names() -> None:
    dataset = blocks(3)
    assert dataset.name is None
    dataset.set_name("numbers")
    assert dataset.name == "numbers"
    assert repr(dataset).startswith("Dataset(name=numbers, rows=3")
    assert dataset.context is lockstep.data.DataContext.get_current()
