"""Time in collectives: who waits for whom between two reports."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from lockstep import train
from lockstep.error_record import error_text, pack_error
from lockstep.journal.records import RunRecords
from lockstep.ledger import read_ledger
from lockstep.ledger.what_if import find_straggler
from lockstep.ledger.why import reasons
from lockstep.storage import open_storage
from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer, prepare_model
from lockstep.train.torch.collectives import CollectiveShare, count_waits

STEPS = 11
SLOWER_S = 0.1


def measured(iteration: int, start_s: float, comm_s: float, hidden_s: float) -> dict[str, Any]:
    """What DDP says of one iteration, in nanoseconds."""
    return {
        "iteration": iteration,
        "forward_compute_time_start": int(start_s * 1e9),
        "backward_comm_time": int(comm_s * 1e9),
        "backward_compute_comm_overlap_time": int(hidden_s * 1e9),
    }


def test_the_share_of_an_iteration() -> None:
    share = CollectiveShare()
    share.sample({"iteration": 0})  # before the first sample
    assert share.of(1.0) == 0.0
    share.sample(measured(10, 100.0, 0.5, 0.25))
    assert share.of(1.0) == 0.0  # how long an iteration takes is not known yet
    share.sample(measured(100, 190.0, 0.5, 0.25))
    assert share.of(2.0) == pytest.approx(0.5)
    share.sample(measured(200, 290.0, 5.0, 0.0))
    assert share.of(2.0) == pytest.approx(2.0)
    share.sample(measured(200, 290.0, 5.0, 0.0))  # the same sample again
    assert share.of(150.0) == pytest.approx(150.0)
    assert share.of(60.0) == 0.0  # after 200 iterations' time without one, the model rests


def with_model(parallel_strategy: str) -> None:
    model = prepare_model(nn.Linear(8, 8), parallel_strategy=parallel_strategy)
    for _ in range(STEPS):
        if train.get_context().get_world_rank() == 1:
            time.sleep(SLOWER_S)
        model(torch.ones(2, 8)).sum().backward()
        train.report({})


def sharded_by_hand() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(model[1])
    fully_shard(model)
    for _ in range(STEPS):
        if train.get_context().get_world_rank() == 1:
            time.sleep(SLOWER_S)
        model(torch.ones(2, 8)).sum().backward()
        train.report({})


def with_a_collective_of_its_own() -> None:
    for _ in range(STEPS):
        if train.get_context().get_world_rank() == 1:
            time.sleep(SLOWER_S)
        torch.distributed.all_reduce(torch.ones(8))
        train.report({})


@pytest.mark.parametrize(
    "function",
    [
        partial(with_model, "ddp"),
        partial(with_model, "fsdp"),
        sharded_by_hand,
        with_a_collective_of_its_own,
    ],
    ids=["ddp", "fsdp", "fully_shard", "all_reduce"],
)
def test_a_rank_that_the_others_wait_for_in_collectives(function: Any, tmp_path: Path) -> None:
    result = TorchTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, storage_path=str(tmp_path)),
    ).fit()
    # Both arrive together at each report, because rank 0 has waited in the backward pass.
    waited = [rank.seconds["ranks"] for rank in result.goodput.ranks]
    assert waited[0] > STEPS * SLOWER_S / 4
    assert waited[0] > waited[1]
    ledger = read_ledger(RunRecords(open_storage(result.path)))
    straggler = find_straggler(ledger)
    assert straggler is not None
    assert straggler.rank == 1
    (why,) = (reason.text for reason in reasons(ledger) if reason.account == "ranks")
    assert why.startswith("Rank 1 arrives last at ")


def test_waits_in_other_threads_and_outside_a_run_count_nowhere(tmp_path: Path) -> None:
    def function() -> None:
        rank = train.get_context().get_world_rank()
        group = torch.distributed.new_group()
        if rank == 1:
            time.sleep(SLOWER_S)
        beside = threading.Thread(
            target=torch.distributed.all_reduce, args=(torch.ones(8),), kwargs={"group": group}
        )
        beside.start()
        beside.join()
        train.report({})

    result = TorchTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, storage_path=str(tmp_path)),
    ).fit()
    (row,) = RunRecords(open_storage(result.path)).reports()
    assert "waits" not in row


def test_the_measurement_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.distributed.Work.wait
    undo = count_waits()
    assert torch.distributed.Work.wait is not original
    undo()
    assert torch.distributed.Work.wait is original
    monkeypatch.delattr(torch.distributed, "Work")  # a torch without that name: nothing is counted
    count_waits()()


def test_an_error_in_a_collective_ends_in_torch() -> None:
    def collective() -> None:
        torch.distributed.Work.wait(None)  # type: ignore[arg-type]

    undo = count_waits()
    try:
        with pytest.raises(TypeError) as caught:
            collective()
    finally:
        undo()
    assert caught.traceback[-1].name == "wait"
    record = pack_error(caught.value)
    assert error_text(record).count("File") == 2
    assert "collectives.py" not in error_text(record).replace(__file__, "")
