"""Batches of tensors."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import lockstep.data
from lockstep.data import Dataset, DataShard
from tests.data.datasets import blocks


def shard(dataset: Dataset, size: int = 1, rank: int = 0, **options: Any) -> DataShard:
    return dataset.prepare(size, **options).shard(rank)


def test_batches() -> None:
    dataset = lockstep.data.from_numpy(
        {"x": np.arange(12, dtype=np.float32).reshape(6, 2), "y": np.arange(6)}
    )
    batches = list(shard(dataset).iter_torch_batches(batch_size=4))
    assert [b["x"].shape for b in batches] == [(4, 2), (2, 2)]
    assert torch.equal(torch.cat([b["y"] for b in batches]), torch.arange(6))
    assert batches[0]["x"].dtype == torch.float32
    (one,) = dataset.iter_torch_batches(dtypes=torch.float64, device="cpu")
    assert {tensor.dtype for tensor in one.values()} == {torch.float64}
    (one,) = dataset.iter_torch_batches(dtypes={"y": torch.int32})
    assert (one["x"].dtype, one["y"].dtype) == (torch.float32, torch.int32)


@pytest.mark.parametrize("batch_size", [4, 5])
def test_writing_to_a_tensor_changes_nothing_else(batch_size: int, tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(20), "l": [[1, 2]] * 20})
    pq.write_table(table, tmp_path / "a", row_group_size=7)
    stored = lockstep.data.read_parquet(tmp_path / "a")
    constant = np.arange(100)

    def add(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "c": constant[: len(batch["x"])]}

    memory = lockstep.data.from_arrow(table)
    for dataset in (
        memory,
        memory.random_shuffle(seed=1),
        memory.map_batches(add),
        stored,
        stored.limit(15).union(stored.limit(15)),
        stored.random_shuffle(seed=1),
    ):
        for _ in range(2):
            seen = []
            for batch in dataset.iter_torch_batches(batch_size=batch_size):
                seen += batch["x"].tolist()
                for tensor in batch.values():
                    tensor += 1000
            assert sorted(set(seen)) == list(range(20)) or sorted(set(seen)) == [*range(15)]
    assert constant.tolist() == list(range(100))
    assert table["x"].to_pylist() == list(range(20))


def test_what_cannot_be_a_tensor() -> None:
    dataset = lockstep.data.from_items([{"s": "a", "x": 1}])
    with pytest.raises(TypeError, match=r"Column 's' of type str .* drop_columns"):
        next(dataset.iter_torch_batches())
    (batch,) = dataset.iter_torch_batches(collate_fn=lambda b: (list(b["s"]), b["x"] * 2))
    assert batch[0] == ["a"]
    with pytest.raises(ValueError, match="give one of the two"):
        dataset.iter_torch_batches(collate_fn=lambda b: b, dtypes=torch.float32)


def test_a_collate_function_runs_in_a_thread_of_its_own() -> None:
    names = []

    def collate(batch: dict[str, Any]) -> Any:
        names.append(threading.current_thread().name)
        return torch.as_tensor(batch["id"].copy())

    batches = blocks(100).iter_torch_batches(batch_size=10, collate_fn=collate)
    assert torch.equal(torch.cat(list(batches)), torch.arange(100))
    assert set(names) == {"lockstep-data-convert"}
    assert list(blocks(4).iter_torch_batches(collate_fn=collate, prefetch_batches=0))
    assert names[-1] == "MainThread"


def test_the_device_of_a_worker() -> None:
    part = shard(blocks(4))
    part.auto_device = lambda: "meta"
    assert next(part.iter_torch_batches())["id"].device.type == "meta"
    assert next(part.iter_torch_batches(device="cpu"))["id"].device.type == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="device='cuda': torch sees no GPU in this process"):
        blocks(4).iter_torch_batches(device="cuda")
