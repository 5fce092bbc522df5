"""``DataConfig.configure`` of a user's own: who gets which rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import lockstep.data
from lockstep import train
from lockstep.config import FailureConfig, RunConfig, ScalingConfig
from lockstep.data import DataConfig, Dataset
from lockstep.errors import TrainingFailedError
from lockstep.train import DataParallelTrainer


class ByParity(DataConfig):
    """Rank 0 gets the even rows, rank 1 the odd ones; ``val`` is rank 0's alone."""

    def __init__(self, log: Path) -> None:
        super().__init__(datasets_to_split=["train"])
        self.log = log

    def configure(
        self,
        datasets: Mapping[str, Dataset],
        world_size: int,
        worker_handles: Any = None,
        worker_node_ids: Any = None,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        with self.log.open("a") as file:
            file.write(f"{sorted(datasets)} {world_size}\n")
        rows = datasets["train"]
        parts: list[dict[str, Any]] = [
            {"train": rows.filter(lambda row, rank=rank: row["id"] % world_size == rank)}
            for rank in range(world_size)
        ]
        parts[0]["val"] = datasets["val"].iterator()
        return parts


def rows_of_each(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    shard = train.get_dataset_shard("train")
    ids = [row["id"] for row in shard.iter_rows()]
    assert train.get_dataset_shard("train") is shard
    if rank == 0:
        assert train.get_dataset_shard("val").count() == 3
    else:
        with pytest.raises(KeyError, match=r"configure\(\) gave rank 1 'train'"):
            train.get_dataset_shard("val")
    log = Path(config["notes"], f"rank_{rank}.txt")
    with log.open("a") as file:
        file.write(f"{ids}\n")
    attempt = len(log.read_text().splitlines())
    train.report({"rows": len(ids)})
    if config.get("fails") and attempt == 1:
        raise RuntimeError("raised on purpose")


def test_the_users_own_division(tmp_path: Path) -> None:
    trainer = DataParallelTrainer(
        rows_of_each,
        train_loop_config={"notes": str(tmp_path), "fails": True},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=tmp_path / "runs", failure_config=FailureConfig(max_failures=1)
        ),
        datasets={"train": lockstep.data.range(10), "val": lockstep.data.range(3)},
        dataset_config=ByParity(tmp_path / "calls"),
    )
    trainer.fit()
    assert (tmp_path / "rank_0.txt").read_text() == "[0, 2, 4, 6, 8]\n" * 2
    assert (tmp_path / "rank_1.txt").read_text() == "[1, 3, 5, 7, 9]\n" * 2
    assert (tmp_path / "calls").read_text() == "['train', 'val'] 2\n" * 2


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([{}], "a list with one dict for each of the 2 workers"),
        ([3, {}], "returned 3 for rank 0; return a dict"),
        ([{}, {"train": 3}], "returned 3 for dataset 'train' of rank 1; return a shard"),
    ],
)
def test_what_it_returns_is_checked(tmp_path: Path, returned: Any, message: str) -> None:
    class Wrong(DataConfig):
        def configure(self, *args: Any, **kwargs: Any) -> Any:
            return returned

    trainer = DataParallelTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path),
        datasets={"train": lockstep.data.range(10)},
        dataset_config=Wrong(),
    )
    with pytest.raises(TrainingFailedError, match=message):
        trainer.fit()


def test_what_ray_does_by_itself() -> None:
    config = DataConfig(datasets_to_split=["a"])
    parts = config.configure({"a": lockstep.data.range(4), "b": lockstep.data.range(3)}, 2)
    assert [part["a"].count() for part in parts] == [2, 2]
    assert [part["b"].count() for part in parts] == [3, 3]


def test_what_ray_does_by_itself_follows_order_and_seed() -> None:
    dataset = lockstep.data.range(64).random_shuffle()

    def rows() -> list[list[int]]:
        config = DataConfig(order="global", seed=3)
        shards = config.configure({"train": dataset}, 2)
        return [[row["id"] for row in shard["train"].iter_rows()] for shard in shards]

    assert rows() == rows()
