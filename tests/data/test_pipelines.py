"""Random pipelines against the same thing done to a list: rows, shards, batches, positions."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import lockstep.data
from lockstep.data import Dataset, DataShard, merge_states


def ids(batch: Any) -> list[int]:
    return [int(value) for value in batch["id"]]


def source(rng: random.Random, folder: Path) -> tuple[Dataset, list[int]]:
    count = rng.choice([1, 5, 23, 60, 111])
    first = rng.randrange(1000) * 1000
    rows = list(range(first, first + count))
    table = pa.table({"id": pa.array(rows, pa.int64())})
    blocks = rng.choice([1, 3, 7])
    folder = folder / str(rng.getrandbits(40))
    folder.mkdir()
    kind = rng.choice(["range", "memory", "parquet", "csv", "json"])
    if kind == "range":
        numbers = lockstep.data.range(count, override_num_blocks=blocks)
        return numbers.map_batches(lambda batch: {"id": batch["id"] + first}), rows
    if kind == "memory":
        return lockstep.data.from_arrow(table, override_num_blocks=blocks), rows
    for part in range(blocks):
        begin, end = count * part // blocks, count * (part + 1) // blocks
        few, file = table.slice(begin, end - begin), folder / f"{part}.{kind}"
        if kind == "parquet":
            pq.write_table(few, file, row_group_size=rng.choice([4, 13]))
        elif few.num_rows and kind == "csv":
            pyarrow.csv.write_csv(few, file)
        elif few.num_rows:
            file.write_text("".join(json.dumps(row) + "\n" for row in few.to_pylist()))
    return getattr(lockstep.data, f"read_{kind}")(folder), rows


class Pipeline:
    """A dataset and the rows of its first epoch.

    What leaves out or adds rows of something shuffled changes the order, too: only the same rows
    are expected of it then.
    """

    def __init__(self, rng: random.Random, folder: Path, steps: int = 5) -> None:
        self.rng, self.folder, self.shuffled = rng, folder, False
        self.dataset, self.rows = source(rng, folder)
        self.done: list[str] = []
        for _ in range(rng.randrange(steps + 1)):
            step: Callable[[], tuple[Dataset, list[int]]] = rng.choice(
                [self.filter, self.expression, self.flat_map, self.map_batches, self.twice,
                 self.limit, self.union, self.zip, self.shuffle, self.sample, self.repartition,
                 self.part, self.split, self.sort, self.columns]
            )  # fmt: skip
            self.done.append(step.__name__)
            before = self.shuffled
            self.dataset, expected = step()
            found = [row["id"] for row in self.dataset.take_all()]
            if step == self.sample:
                assert not Counter(found) - Counter(self.rows), self.done
            else:
                assert sorted(found) == sorted(expected), self.done
                assert found == expected or before or self.shuffled, self.done
            self.rows = found

    def filter(self) -> tuple[Dataset, list[int]]:
        kept = self.dataset.filter(lambda row: row["id"] % 3 != 0)
        return kept, [i for i in self.rows if i % 3]

    def expression(self) -> tuple[Dataset, list[int]]:
        low = self.rng.choice(self.rows or [0])
        return self.dataset.filter(expr=f"id >= {low}"), [i for i in self.rows if i >= low]

    def flat_map(self) -> tuple[Dataset, list[int]]:
        made = self.dataset.flat_map(lambda row: [row] * (row["id"] % 3))
        return made, [i for i in self.rows for _ in range(i % 3)]

    def map_batches(self) -> tuple[Dataset, list[int]]:
        size, threads = self.rng.choice([None, 3, 50]), self.rng.choice([None, 2])
        made = self.dataset.map_batches(
            lambda batch: {"id": batch["id"] + 1}, batch_size=size, concurrency=threads
        )
        return made, [i + 1 for i in self.rows]

    def twice(self) -> tuple[Dataset, list[int]]:
        made = self.dataset.map_batches(
            lambda batch: {"id": np.repeat(batch["id"], 2)}, preserves_rows=False
        )
        return made, [i for i in self.rows for _ in range(2)]

    def limit(self) -> tuple[Dataset, list[int]]:
        rows, self.shuffled = self.rng.choice([0, 1, 10, 50, 1000]), False
        return self.dataset.limit(rows), self.rows[:rows]

    def union(self) -> tuple[Dataset, list[int]]:
        other = Pipeline(self.rng, self.folder, steps=2)
        self.shuffled = self.shuffled or other.shuffled
        return self.dataset.union(other.dataset), self.rows + other.rows

    def zip(self) -> tuple[Dataset, list[int]]:
        if not self.rows:  # nobody may know what columns they would have
            return self.dataset, self.rows
        self.shuffled = False
        other = lockstep.data.range(len(self.rows)).rename_columns(["other"])
        return self.dataset.zip(other).select_columns(["id"]), self.rows

    def shuffle(self) -> tuple[Dataset, list[int]]:
        self.shuffled = True
        seed = self.rng.randrange(9)
        window: Any = self.rng.choice(["auto", "full", 5, 40, "blocks"])
        if window == "blocks":
            return self.dataset.randomize_block_order(seed=seed), self.rows
        return self.dataset.random_shuffle(seed=seed, window=window), self.rows

    def sample(self) -> tuple[Dataset, list[int]]:
        return self.dataset.random_sample(0.5, seed=self.rng.randrange(9)), self.rows

    def repartition(self) -> tuple[Dataset, list[int]]:
        return self.dataset.repartition(self.rng.choice([1, 4, 20])), self.rows

    def part(self) -> tuple[Dataset, list[int]]:
        begin, end = sorted(self.rng.randrange(len(self.rows) + 1) for _ in range(2))
        self.shuffled = False
        return self.dataset.split_at_indices([begin, end])[1], self.rows[begin:end]

    def split(self) -> tuple[Dataset, list[int]]:
        self.shuffled = False
        half = len(self.rows) // 2
        return self.dataset.split(2)[0], self.rows[:half]

    def sort(self) -> tuple[Dataset, list[int]]:
        self.shuffled = False
        return self.dataset.sort("id", descending=True), sorted(self.rows, reverse=True)

    def columns(self) -> tuple[Dataset, list[int]]:
        renamed = self.dataset.add_column("more", lambda frame: frame["id"]).drop_columns("more")
        return renamed.rename_columns({"id": "x"}).rename_columns(["id"]), self.rows


def check_shares(dataset: Dataset, rows: list[int], size: int, prefetch: int) -> None:
    for equal in (True, False):
        plan = dataset.prepare(size, equal=equal)
        shares = [
            [i for batch in part.iter_batches(batch_size=8, prefetch_batches=prefetch)
             for i in ids(batch)]
            for part in map(plan.shard, range(size))
        ]  # fmt: skip
        assert len({len(share) for share in shares}) == 1 or not equal
        shared = len(rows) - len(rows) % size if equal else len(rows)
        assert [i for share in shares for i in share] == rows[:shared]


def global_batches(dataset: Dataset, size: int) -> list[list[list[int]]]:
    """Of two epochs, each put together from the parts of all ranks."""
    plan = dataset.prepare(size, equal=False, order="global")
    parts = [plan.shard(rank) for rank in range(size)]
    epochs = []
    for _ in range(2):
        runs = [[ids(b) for b in p.iter_batches(batch_size=16, prefetch_batches=0)] for p in parts]
        steps = range(max(map(len, runs)))
        epochs.append([[i for run in runs if step < len(run) for i in run[step]] for step in steps])
    return epochs


def interrupted(dataset: Dataset, rng: random.Random, order: str) -> list[int]:
    """An epoch whose group is stopped and resized at random, its ranks not in step."""
    state: dict[str, Any] | None = None
    seen: list[int] = []
    while True:
        size = rng.choice([1, 2, 3, 7])
        plan = dataset.prepare(size, equal=False, order=order)
        parts = [plan.shard(rank, state) for rank in range(size)]
        local, batch = rng.choice([None, None, 5, 30]), rng.choice([7, 16])
        passes = [
            iter(
                part.iter_batches(
                    batch_size=batch,
                    local_shuffle_buffer_size=local,
                    local_shuffle_seed=rng.choice([None, rank]),
                    prefetch_batches=rng.choice([0, 0, 1]),
                )
            )
            for rank, part in enumerate(parts)
        ]
        for one in passes:
            for _ in range(rng.randrange(1, 4)):
                seen += ids(next(one, {"id": []}))
        state = position(parts)
        if state["epoch"] > 0:
            return seen


def position(parts: list[DataShard]) -> dict[str, Any]:
    merged: dict[str, Any] = json.loads(json.dumps(merge_states([p.state_dict() for p in parts])))
    return merged


@pytest.mark.parametrize("seed", range(24))
def test_a_random_pipeline(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    pipeline = Pipeline(rng, tmp_path)
    dataset, rows = pipeline.dataset, pipeline.rows
    assert dataset.count() == len(rows)
    check_shares(dataset, rows, rng.choice([2, 7]), rng.choice([0, 1]))
    alone = global_batches(dataset, 1)
    assert [i for batch in alone[0] for i in batch] == rows
    for size in (2, 7):
        assert global_batches(dataset, size) == alone
    for order in ("local", "global"):
        assert sorted(interrupted(dataset, rng, order)) == sorted(rows)
