"""Datasets and plans in other processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lockstep.data
from lockstep.data import Dataset, DataShard
from tests.data.datasets import blocks


def shard(dataset: Dataset, size: int = 1, rank: int = 0, **options: Any) -> DataShard:
    return dataset.prepare(size, **options).shard(rank)


@pytest.mark.timeout(180)
def test_a_plan_goes_to_another_process(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet", row_group_size=9)
    (tmp_path / "b.csv").write_text("x\n" + "\n".join(map(str, range(100))))
    factor = 3

    class Times:
        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            return {"x": batch["x"] * factor}

    for dataset in (
        lockstep.data.read_parquet(tmp_path / "a.parquet"),
        lockstep.data.read_csv(tmp_path / "b.csv"),
        lockstep.data.from_items([{"x": i} for i in range(100)]),
    ):
        plan = dataset.map_batches(Times).random_shuffle(seed=1).prepare(2)
        sent = cloudpickle.dumps(plan)
        (tmp_path / "plan").write_bytes(sent)
        code = (
            "import pickle, sys\n"
            "plan = pickle.load(open(sys.argv[1], 'rb'))\n"
            "shard = plan.shard(1)\n"
            "print([int(i) for b in shard.iter_batches() for i in b['x']])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "plan")],
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stderr
        here = [int(i) for b in plan.shard(1).iter_batches() for i in b["x"]]
        assert done.stdout.strip() == str(here)


def test_a_plan_of_files_is_small(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(100_000)}), tmp_path / "a.parquet", row_group_size=1000)
    plan = lockstep.data.read_parquet(tmp_path).map(lambda row: row).prepare(2)
    assert len(cloudpickle.dumps(plan)) < 20_000


def test_a_dataset_is_pickled_with_what_it_knows() -> None:
    dataset = blocks(10).random_shuffle(seed=1)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.take_all() == dataset.take_all()
