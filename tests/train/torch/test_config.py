"""TorchConfig: every attempt's process group follows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lockstep import train
from lockstep.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from lockstep.train.backend import Place, share_gpus
from lockstep.train.torch import TorchConfig, TorchTrainer
from tests.train.torch.ranks import fit


def fails_once() -> None:
    if (train.get_context().get_attempt(), train.world_rank()) == (1, 1):
        os._exit(3)
    total = torch.ones(1)
    dist.all_reduce(total)
    train.report({"total": total.item()})


def test_a_file_to_meet_at_serves_the_next_attempt_too(tmp_path: Path) -> None:
    """The file of the failed attempt names workers that no longer exist."""
    result = TorchTrainer(
        fails_once,
        torch_config=TorchConfig(init_method=f"file://{tmp_path}/meeting"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(tmp_path / "runs"), verbose=0, failure_config=FailureConfig(1)
        ),
    ).fit()
    assert result.metrics["total"] == 2.0


@pytest.mark.slow
def test_an_operation_ends_after_the_timeout(tmp_path: Path) -> None:
    def function() -> None:
        if train.world_rank() == 0:
            dist.barrier()
        else:
            Path(tmp_path, "pipe").read_text()  # blocks: no process writes to it

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WorkerGroupError, match=r"Rank 0 of 2 failed.*Timed out waiting 10000ms"):
        # The limit also holds while the group is set up, which takes time on a busy machine.
        fit(function, torch_config=TorchConfig(timeout_s=10))


@pytest.mark.parametrize(
    ("gpus", "shared"),
    [
        (["0", "1"], False),
        (["0", "0"], True),
        (["0,1", "2,3"], False),
        (["0", "0", "1"], True),
        ([None, None], False),
        (["", ""], False),
    ],
)
def test_whether_workers_share_a_gpu(gpus: list[str | None], shared: bool) -> None:
    assert share_gpus([Place("here", None, gpu) for gpu in gpus]) is shared
    assert not share_gpus([Place(f"host {i}", None, gpu) for i, gpu in enumerate(gpus)])
