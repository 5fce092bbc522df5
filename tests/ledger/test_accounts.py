"""The accounts of a journal: exact where the times are known, and complete for real runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.journal.records import RunRecords
from lockstep.ledger import ACCOUNTS, Goodput, read_ledger
from lockstep.storage import open_storage
from lockstep.train import Result
from tests.integration.runs import fit
from tests.ledger.journals import Simulation


def seconds(goodput: Goodput) -> dict[str, float]:
    return {name: round(s, 6) for name, s in goodput.seconds.items() if round(s, 6)}


def test_ranks_wait_for_the_last_one(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    run.report([2.0, 3.0])
    run.report([3.0, 3.0], overhead=0.5)
    run.end([0.0, 1.0], exiting=0.25)
    goodput = run.ledger().goodput
    assert seconds(goodput) == {
        "starting": 2.0,
        "compute": 12.0,
        "ranks": 1.0,
        "reporting": 1.0,
        "idle": 1.5,
    }
    assert goodput.wall_s == 8.75
    assert sum(goodput.values()) == pytest.approx(1)
    assert [round(rank.seconds["ranks"], 6) for rank in goodput.ranks] == [1.0, 0.0]


def test_what_a_rank_waited_for_between_reports(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    # Rank 0 met rank 1 in a collective two seconds before rank 1 came, and both then needed one.
    run.report(
        [6.0, 6.0],
        [{"data": 1.0, "ranks": 1.0, "communication": 2.0}, {"communication": 1.0}],
    )
    run.report([2.0, 2.0], [{"checkpoint": 0.5}, {}])
    run.end()
    assert seconds(run.ledger().goodput) == {
        "starting": 2.0,
        "compute": 2.0 + 5.0 + 1.5 + 2.0,
        "data": 1.0,
        "ranks": 2.0,
        "communication": 2.0,
        "checkpoint": 0.5,
    }


def test_checkpoints_are_written_before_and_after_their_row(tmp_path: Path) -> None:
    run = Simulation(tmp_path, size=1)
    run.start(1.0)
    run.report([1.0], overhead=0.125)  # before the first report: the start of the function
    run.report([1.0], overhead=0.5, checkpoint=True)
    run.report([1.0], overhead=0.25)  # the checkpoint of the row before was published in it
    run.report([1.0], overhead=0.0625)
    run.end()
    assert seconds(run.ledger().goodput) == {
        "starting": 1.125,
        "compute": 4.0,
        "checkpoint": 0.75,
        "reporting": 0.0625,
    }


def test_work_after_the_checkpoint_of_a_failed_attempt_is_lost(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    run.report([1.0, 1.0])
    run.report([1.0, 1.0], checkpoint=True)
    run.report([1.0, 2.0], overhead=0.5)
    run.fail(0.75)
    run.start(0.5, size=1)
    run.report([1.0], overhead=0.25)
    run.end([0.0])
    ledger = run.ledger()
    first, second = ledger.goodput.attempts
    assert seconds(first) == {"starting": 2.0, "compute": 4.0, "lost": 2 * (2.5 + 0.75)}
    assert seconds(second) == {"restarting": 0.75, "compute": 1.0}
    assert (first.wall_s, second.wall_s) == (6.25, 1.75)
    assert sum(first.values()) == pytest.approx(1) == sum(second.values())
    assert ledger.by_report() == pytest.approx({1: 1.0, 2: 1.0, 3: 0.0, 4: 0.8})


def test_a_run_that_failed_has_lost_what_is_in_no_checkpoint(tmp_path: Path) -> None:
    run = Simulation(tmp_path, size=1)
    run.start(1.0)
    run.report([1.0], checkpoint=True)
    run.report([4.0])
    run.fail(2.0, retry=False)
    run.end(state="failed", exiting=0.5)
    assert seconds(run.ledger().goodput) == {"starting": 1.0, "compute": 1.0, "lost": 6.5}


def test_the_time_between_two_drivers_is_in_no_account(tmp_path: Path) -> None:
    run = Simulation(tmp_path, size=1)
    run.start(1.0)
    run.report([1.0], checkpoint=True)
    run.report([4.0])  # then the driver is killed
    run.restore(3600.0)
    run.start(2.0)
    run.report([1.0])
    run.end()
    goodput = run.ledger().goodput
    assert seconds(goodput) == {"starting": 1.0, "compute": 2.0, "lost": 4.0, "restarting": 2.0}
    assert goodput.wall_s == 9.0


def test_a_run_that_has_not_begun_has_no_time(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.end(state="failed")
    goodput = run.ledger().goodput
    assert set(goodput.values()) == {0.0}
    assert (len(goodput.attempts), goodput.wall_s) == (0, 0)
    assert "nothing" in repr(goodput)


def test_workers_that_never_come_up_have_only_started(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.never_up(2.0)
    run.never_up(3.0, retry=False)
    run.end(state="failed", exiting=0.5)
    goodput = run.ledger().goodput
    assert seconds(goodput) == {"starting": 2.0, "restarting": 3.5}
    assert goodput.wall_s == 5.5
    assert sum(goodput.values()) == pytest.approx(1)


def test_a_run_that_is_interrupted_before_its_workers_are_up(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.end(state="interrupted", exiting=4.0)
    assert seconds(run.ledger().goodput) == {"starting": 4.0}


def test_a_restart_that_fails_is_no_lost_work(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    run.report([2.0, 2.0], checkpoint=True)
    run.report([1.0, 1.0])
    run.fail(0.5)
    run.never_up(3.0)
    run.start(1.0)
    run.report([1.0, 1.0])
    run.end([0.0, 0.0])
    ledger = run.ledger()
    assert [attempt.number for attempt in ledger.attempts] == [1, 2, 3]
    assert seconds(ledger.goodput) == {
        "starting": 2.0,
        "compute": 2 * (2.0 + 1.0),
        "lost": 2 * (1.0 + 0.5),
        "restarting": 2 * (3.0 + 1.0),
    }


def check_complete(result: Result) -> Goodput:
    """Whatever happened: each rank's seconds are the wall time, and shares add up to 1."""
    goodput = result.goodput
    assert list(goodput) == list(ACCOUNTS)
    assert sum(goodput.values()) == pytest.approx(1)
    for attempt in goodput.attempts:
        assert sum(attempt.values()) == pytest.approx(1)
        for rank in attempt.ranks:
            assert sum(rank.seconds.values()) == pytest.approx(attempt.wall_s)
            assert min(rank.seconds.values()) >= 0
    return goodput


def test_a_real_run_with_every_account(tmp_path: Path) -> None:
    def train_func() -> None:
        context = train.get_context()
        checkpoint = train.get_checkpoint()
        done = checkpoint.to_dict()["done"] if checkpoint else 0
        for step in range(done + 1, 7):
            if context.get_world_rank() == 1:
                time.sleep(0.25)
                if step == 5 and checkpoint is None:
                    raise ValueError("no")
            save = train.Checkpoint.from_dict({"done": step}) if step == 3 else None
            train.report({"step": step}, checkpoint=save)
        train.collective.barrier()
        if context.get_world_rank() == 0:
            time.sleep(0.25)

    result = fit(train_func, max_failures=1, storage_path=str(tmp_path))
    goodput = check_complete(Result.from_path(result.path))
    first, second = goodput.attempts
    # Rank 0 waits for rank 1 at each report; what rank 1 sleeps counts as its computing.
    assert first.ranks[0].seconds["ranks"] > 0
    assert first.ranks[1].seconds["compute"] >= 3 * 0.25
    assert first.seconds["lost"] >= 2 * 0.25
    assert first.seconds["checkpoint"] > 0
    assert second.seconds["restarting"] > 0
    assert second.ranks[1].seconds["idle"] > 0
    frame = result.metrics_dataframe
    assert list(frame["goodput"] == 0) == [False] * 3 + [True] + [False] * 3
    assert frame["goodput"].between(0, 1).all()


@pytest.mark.parametrize("mode", ["ASYNC", "SYNC"])
def test_checkpoints_and_data_of_a_real_run(tmp_path: Path, mode: str) -> None:
    import numpy as np

    from lockstep import data

    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.1)
        return batch

    def train_func() -> None:
        for batch in train.get_dataset_shard("train").iter_batches(batch_size=4):
            train.report(
                {"rows": len(batch["item"])},
                checkpoint=train.Checkpoint.from_dict({"weights": np.zeros(1000)}),
                checkpoint_upload_mode=train.CheckpointUploadMode[mode],
            )

    items = data.from_items(list(range(16))).map_batches(slow, batch_size=4)
    trainer = train.DataParallelTrainer(
        train_func,
        datasets={"train": items},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(verbose=0, storage_path=str(tmp_path)),
    )
    goodput = check_complete(trainer.fit())
    assert goodput["data"] > 0
    assert goodput["checkpoint"] > 0


def test_making_a_dict_a_checkpoint_is_no_computing(tmp_path: Path) -> None:
    def train_func() -> None:
        class Slow:
            def __reduce__(self) -> tuple[Any, ...]:
                time.sleep(0.2)
                return int, ()

        checkpoint = train.Checkpoint.from_dict({"weights": Slow()})
        train.report({}, checkpoint=checkpoint)
        train.report({}, checkpoint=checkpoint)  # made once

    run_config = train.RunConfig(verbose=0, storage_path=str(tmp_path))
    result = train.DataParallelTrainer(train_func, run_config=run_config).fit()
    ledger = read_ledger(RunRecords(open_storage(result.path)))
    first, second, *_ = ledger.attempts[0].intervals
    assert first.waits[0]["checkpoint"] >= 0.2
    assert "checkpoint" not in second.waits[0]


def test_a_run_that_is_running(tmp_path: Path) -> None:
    run = Simulation(tmp_path, size=1)
    run.start(1.0)
    run.report([1.0])
    run.report([1.0])
    assert seconds(run.ledger().goodput) == {"starting": 1.0, "compute": 2.0}


def test_goodput_of_a_metric_s_name(tmp_path: Path) -> None:
    def train_func() -> None:
        train.report({"goodput": "mine"})

    row = fit(train_func, workers=1, storage_path=str(tmp_path)).metrics_dataframe.iloc[0]
    assert row["metrics/goodput"] == "mine"
    assert 0 <= row["goodput"] <= 1
