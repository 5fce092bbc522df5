"""Backends written for Ray: their hooks are called, with a group that executes on every worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig, TrainingFailedError
from lockstep.train.backend import Backend, BackendConfig


class RayShapedBackend(Backend):
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        assert len(worker_group) == worker_group.num_workers
        pids = worker_group.execute(os.getpid)
        assert len(set(pids)) == len(worker_group)
        assert worker_group.execute_single(len(pids) - 1, os.getpid) == pids[-1]

        def place(values: list[int], name: str) -> None:
            os.environ[name] = str(values)

        worker_group.execute(place, sorted(pids), name="PIDS")
        if backend_config.fail:
            worker_group.execute_single(len(pids) - 1, int, "no number")

    def on_training_start(self, worker_group: Any, backend_config: Any) -> None:
        worker_group.execute(os.putenv, "UNUSED", "1")

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        def leave(path: str) -> None:
            Path(path, str(os.getpid())).touch()

        worker_group.execute(leave, backend_config.path)


@dataclass
class RayShapedConfig(BackendConfig):
    path: str
    fail: bool = False

    @property
    def backend_cls(self) -> type[Backend]:
        return RayShapedBackend

    @property
    def train_func_context(self) -> Any:
        @contextmanager
        def around() -> Iterator[None]:
            os.environ["AROUND"] = "yes"
            yield

        return around


def function() -> None:
    assert os.environ["AROUND"] == "yes"
    train.report({"pids": os.environ["PIDS"], "own": os.getpid()})


@pytest.mark.parametrize("workers", [1, 2])
def test_the_hooks_of_ray_are_called(workers: int, tmp_path: Path) -> None:
    result = DataParallelTrainer(
        function,
        backend_config=RayShapedConfig(str(tmp_path)),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0),
    ).fit()
    left = sorted(int(path.name) for path in tmp_path.iterdir())
    assert result.metrics["pids"] == str(left)
    assert len(left) == workers


def test_an_error_on_another_rank_is_the_runs(tmp_path: Path) -> None:
    trainer = DataParallelTrainer(
        function,
        backend_config=RayShapedConfig(str(tmp_path), fail=True),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0),
    )
    with pytest.raises(TrainingFailedError, match="invalid literal for int"):
        trainer.fit()
