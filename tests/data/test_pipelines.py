"""Random pipelines against the same steps on a list: rows, shards, batches, positions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lockstep.data
from lockstep.data import Dataset, DataShard, merge_states


@dataclass(frozen=True)
class Origin:
    """The source of a pipeline: the numbers from ``first`` on."""

    kind: str
    count: int
    first: int
    blocks: int
    row_group: int


@dataclass(frozen=True)
class Recipe:
    """A pipeline as a value, so that hypothesis can shrink it: a step is a name and an argument."""

    origin: Origin
    steps: list[tuple[str, Any]]


@dataclass(frozen=True)
class Attempt:
    """How a group of workers reads until it is stopped; the lists have a value for each rank."""

    size: int
    batch_size: int
    local_shuffle: int | None
    seeded: list[bool]
    prefetch: list[int]
    batches: list[int]


def each_rank(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=7, max_size=7)


def recipes(steps: int) -> st.SearchStrategy[Recipe]:
    # The number is drawn first: a list alone is empty in half of so few examples.
    lists = st.integers(0, steps).flatmap(
        lambda number: st.lists(st.one_of(STEPS), min_size=number, max_size=number)
    )
    return st.builds(Recipe, ORIGINS, lists)


ORIGINS = st.builds(
    Origin,
    kind=st.sampled_from(["range", "memory", "parquet", "csv", "json"]),
    count=st.sampled_from([1, 5, 23, 60, 111]),
    first=st.integers(0, 999).map(lambda thousands: thousands * 1000),
    blocks=st.sampled_from([1, 3, 7]),
    row_group=st.sampled_from([4, 13]),
)
SEEDS = st.integers(0, 8)
PLACES = st.integers(0, 1000)  # of a row, modulo the number of rows
STEPS = [
    st.tuples(st.just(name), arguments)
    for name, arguments in {
        "filter": st.none(),
        "expression": PLACES,
        "flat_map": st.none(),
        "map_batches": st.tuples(st.sampled_from([None, 3, 50]), st.sampled_from([None, 2])),
        "twice": st.none(),
        "limit": st.sampled_from([0, 1, 10, 50, 1000]),
        "union": st.deferred(lambda: recipes(2)),
        "zip": st.none(),
        "shuffle": st.tuples(SEEDS, st.sampled_from(["auto", "full", 5, 40, "blocks"])),
        "sample": SEEDS,
        "repartition": st.sampled_from([1, 4, 20]),
        "part": st.tuples(PLACES, PLACES),
        "split": st.none(),
        "sort": st.none(),
        "columns": st.none(),
    }.items()
]
ATTEMPTS = st.builds(
    Attempt,
    size=st.sampled_from([1, 2, 3, 7]),
    batch_size=st.sampled_from([7, 16]),
    local_shuffle=st.sampled_from([None, None, 5, 30]),
    seeded=each_rank(st.booleans()),
    prefetch=each_rank(st.sampled_from([0, 0, 1])),
    batches=each_rank(st.integers(1, 3)),
)


def ids(batch: Any) -> list[int]:
    return [int(value) for value in batch["id"]]


def source(origin: Origin, folder: Path) -> tuple[Dataset, list[int]]:
    first, count, blocks = origin.first, origin.count, origin.blocks
    rows = list(range(first, first + count))
    table = pa.table({"id": pa.array(rows, pa.int64())})
    if origin.kind == "range":
        numbers = lockstep.data.range(count, override_num_blocks=blocks)
        return numbers.map_batches(lambda batch: {"id": batch["id"] + first}), rows
    if origin.kind == "memory":
        return lockstep.data.from_arrow(table, override_num_blocks=blocks), rows
    folder.mkdir(parents=True)
    for part in range(blocks):
        begin, end = count * part // blocks, count * (part + 1) // blocks
        few, file = table.slice(begin, end - begin), folder / f"{part}.{origin.kind}"
        if origin.kind == "parquet":
            pq.write_table(few, file, row_group_size=origin.row_group)
        elif few.num_rows and origin.kind == "csv":
            pyarrow.csv.write_csv(few, file)
        elif few.num_rows:
            file.write_text("".join(json.dumps(row) + "\n" for row in few.to_pylist()))
    return getattr(lockstep.data, f"read_{origin.kind}")(folder), rows


Result = tuple[Dataset, list[int]]


class Pipeline:
    """A dataset and the rows of its first epoch.

    A step that removes or adds rows of a shuffled dataset changes the order, too: the test then
    expects the same rows in any order.
    """

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.folder, self.shuffled = folder, False
        self.dataset, self.rows = source(recipe.origin, folder / "source")
        for number, (name, argument) in enumerate(recipe.steps):
            self.folder = folder / str(number)
            before = self.shuffled
            arguments = () if argument is None else (argument,)
            self.dataset, expected = getattr(self, name)(*arguments)
            found = [row["id"] for row in self.dataset.take_all()]
            if name == "sample":
                assert not Counter(found) - Counter(self.rows), name
            else:
                assert sorted(found) == sorted(expected), name
                assert found == expected or before or self.shuffled, name
            self.rows = found

    def filter(self) -> Result:
        kept = self.dataset.filter(lambda row: row["id"] % 3 != 0)
        return kept, [i for i in self.rows if i % 3]

    def expression(self, place: int) -> Result:
        low = self.rows[place % len(self.rows)] if self.rows else 0
        return self.dataset.filter(expr=f"id >= {low}"), [i for i in self.rows if i >= low]

    def flat_map(self) -> Result:
        repeated = self.dataset.flat_map(lambda row: [row] * (row["id"] % 3))
        return repeated, [i for i in self.rows for _ in range(i % 3)]

    def map_batches(self, options: tuple[int | None, int | None]) -> Result:
        size, threads = options
        mapped = self.dataset.map_batches(
            lambda batch: {"id": batch["id"] + 1}, batch_size=size, concurrency=threads
        )
        return mapped, [i + 1 for i in self.rows]

    def twice(self) -> Result:
        doubled = self.dataset.map_batches(
            lambda batch: {"id": np.repeat(batch["id"], 2)}, preserves_rows=False
        )
        return doubled, [i for i in self.rows for _ in range(2)]

    def limit(self, rows: int) -> Result:
        self.shuffled = False
        return self.dataset.limit(rows), self.rows[:rows]

    def union(self, recipe: Recipe) -> Result:
        other = Pipeline(recipe, self.folder)
        self.shuffled = self.shuffled or other.shuffled
        return self.dataset.union(other.dataset), self.rows + other.rows

    def zip(self) -> Result:
        if not self.rows:  # without rows, the columns may be unknown
            return self.dataset, self.rows
        self.shuffled = False
        other = lockstep.data.range(len(self.rows)).rename_columns(["other"])
        return self.dataset.zip(other).select_columns(["id"]), self.rows

    def shuffle(self, options: tuple[int, Any]) -> Result:
        self.shuffled = True
        seed, window = options
        if window == "blocks":
            return self.dataset.randomize_block_order(seed=seed), self.rows
        return self.dataset.random_shuffle(seed=seed, window=window), self.rows

    def sample(self, seed: int) -> Result:
        return self.dataset.random_sample(0.5, seed=seed), self.rows

    def repartition(self, blocks: int) -> Result:
        return self.dataset.repartition(blocks), self.rows

    def part(self, places: tuple[int, int]) -> Result:
        begin, end = sorted(place % (len(self.rows) + 1) for place in places)
        self.shuffled = False
        return self.dataset.split_at_indices([begin, end])[1], self.rows[begin:end]

    def split(self) -> Result:
        self.shuffled = False
        half = len(self.rows) // 2
        return self.dataset.split(2)[0], self.rows[:half]

    def sort(self) -> Result:
        self.shuffled = False
        return self.dataset.sort("id", descending=True), sorted(self.rows, reverse=True)

    def columns(self) -> Result:
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
    """The batches of two epochs, each batch joined from the parts of all ranks."""
    plan = dataset.prepare(size, equal=False, order="global")
    parts = [plan.shard(rank) for rank in range(size)]
    epochs = []
    for _ in range(2):
        runs = [[ids(b) for b in p.iter_batches(batch_size=16, prefetch_batches=0)] for p in parts]
        steps = range(max(map(len, runs)))
        epochs.append([[i for run in runs if step < len(run) for i in run[step]] for step in steps])
    return epochs


def interrupted(dataset: Dataset, attempts: Sequence[Attempt], order: str) -> list[int]:
    """The rows of an epoch whose group is stopped and resized, its ranks not in step."""
    state: dict[str, Any] | None = None
    seen: list[int] = []
    for attempt in cycle(attempts):
        plan = dataset.prepare(attempt.size, equal=False, order=order)
        parts = [plan.shard(rank, state) for rank in range(attempt.size)]
        passes = [
            iter(
                part.iter_batches(
                    batch_size=attempt.batch_size,
                    local_shuffle_buffer_size=attempt.local_shuffle,
                    local_shuffle_seed=rank if attempt.seeded[rank] else None,
                    prefetch_batches=attempt.prefetch[rank],
                )
            )
            for rank, part in enumerate(parts)
        ]
        for rank, batches in enumerate(passes):
            for _ in range(attempt.batches[rank]):
                seen += ids(next(batches, {"id": []}))
        state = position(parts)
        if state["epoch"] > 0:
            break
    return seen


def position(parts: list[DataShard]) -> dict[str, Any]:
    merged: dict[str, Any] = json.loads(json.dumps(merge_states([p.state_dict() for p in parts])))
    return merged


@pytest.mark.timeout(300)  # shrinking a failure takes a while
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    recipe=recipes(5),
    size=st.sampled_from([2, 7]),
    prefetch=st.integers(0, 1),
    attempts=st.fixed_dictionaries(
        {order: st.lists(ATTEMPTS, min_size=1, max_size=8) for order in ("local", "global")}
    ),
)
def test_a_random_pipeline(
    recipe: Recipe,
    size: int,
    prefetch: int,
    attempts: dict[str, list[Attempt]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pipeline = Pipeline(recipe, tmp_path_factory.mktemp("pipeline"))
    dataset, rows = pipeline.dataset, pipeline.rows
    assert dataset.count() == len(rows)
    check_shares(dataset, rows, size, prefetch)
    alone = global_batches(dataset, 1)
    assert [i for batch in alone[0] for i in batch] == rows
    for workers in (2, 7):
        assert global_batches(dataset, workers) == alone
    for order, some in attempts.items():
        assert sorted(interrupted(dataset, some, order)) == sorted(rows)
