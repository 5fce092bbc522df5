"""Datasets of Ray Data on a Ray cluster: streamed to the workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.config import FailureConfig, RunConfig, ScalingConfig
from lockstep.data import DataConfig
from lockstep.errors import TrainingFailedError
from lockstep.train import Checkpoint, DataParallelTrainer, UserCallback

pytestmark = [
    pytest.mark.environment("ray"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning:ray"),  # in Ray itself
]

ROWS = 40


def read(config: dict[str, Any]) -> None:
    rank, started = train.get_context().get_world_rank(), train.get_checkpoint()
    shard: Any = train.get_dataset_shard("train")
    for epoch in range(2):
        rows = [int(i) for batch in shard.iter_batches(batch_size=4) for i in batch["id"]]
        every = [int(row["id"]) for row in train.get_dataset_shard("all").iter_rows()]
        kept = Checkpoint.from_dict({"epoch": epoch}) if rank == 0 else None
        metrics = {"rows": rows, "all": sorted(every), "kind": type(shard).__module__}
        metrics["ordered"] = shard.get_context().execution_options.preserve_order
        train.report({**metrics, "resumed": started is not None}, checkpoint=kept)
        if started is None and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Rows(UserCallback):
    def __init__(self) -> None:
        self.seen: list[list[dict[str, Any]]] = []

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        self.seen.append(metrics)


def test_ray_data_is_streamed_to_the_workers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import ray

    rows = Rows()
    DataParallelTrainer(
        read,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(
            storage_path=str(tmp_path),
            verbose=1,
            callbacks=[rows],
            failure_config=FailureConfig(max_failures=1),
        ),
        datasets={"train": ray.data.range(ROWS), "all": ray.data.range(5)},
        dataset_config=DataConfig(
            datasets_to_split=["train"],
            execution_options={"train": ray.data.ExecutionOptions(preserve_order=True)},
        ),
    ).fit()
    assert [metrics[0]["resumed"] for metrics in rows.seen] == [False, True, True]
    for metrics in rows.seen:
        assert [len(one["rows"]) for one in metrics] == [ROWS // 2, ROWS // 2]
        assert sorted(row for one in metrics for row in one["rows"]) == list(range(ROWS))
        assert all(one["all"] == list(range(5)) for one in metrics)
        assert all(one["kind"].startswith("ray.data.") for one in metrics)
        assert all(one["ordered"] for one in metrics)
    captured = capfd.readouterr()
    assert "which cannot resume within an epoch" in captured.out + captured.err


def read_once(config: dict[str, Any]) -> None:
    for _ in train.get_dataset_shard("train").iter_batches(batch_size=4):
        pass
    train.report({})


def test_streams_without_rows_are_named(tmp_path: Path) -> None:
    import ray

    def fit(dataset: Any) -> None:
        DataParallelTrainer(
            read_once,
            train_loop_config={},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
            datasets={"train": dataset},
        ).fit()

    with pytest.raises(ValueError, match=r"datasets\['train'\] has 1 rows for 2 workers"):
        fit(ray.data.range(1))
    # Ray knows only when it reads how many are left.
    with pytest.raises(TrainingFailedError) as failed:
        fit(ray.data.range(10).map_batches(lambda batch: {"id": batch["id"][:0]}))
    assert "datasets['train'] is empty, or has fewer rows than" in str(failed.value.__cause__)
