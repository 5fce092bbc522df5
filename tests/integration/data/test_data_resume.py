"""Failures in the middle of an epoch: no row comes twice and none is skipped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

import lockstep
import lockstep.data
from lockstep import runtime, train
from lockstep.callback import Callback
from lockstep.testing import FaultPlan
from lockstep.train import (
    Checkpoint,
    DataConfig,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from tests.integration.data.feeding import feed, feeding, ids_by_epoch
from tests.repository import ROOT, SRC

ROWS = 240
Order = Literal["local", "global"]


def numbers(shuffle: str = "", blocks: int = 7) -> Any:
    """Rows with an id each, in several blocks."""
    dataset = lockstep.data.range(ROWS, override_num_blocks=blocks)
    return dataset.random_shuffle(seed=3) if shuffle else dataset


def unlike(first: list[int], second: list[int]) -> bool:
    """Whether two epochs are the same rows in another order."""
    return first != second and sorted(first) == sorted(second)


@pytest.mark.parametrize("order", ["local", "global"])
@pytest.mark.parametrize("shuffle", ["", "shuffled"])
def test_a_killed_worker_costs_no_row(shuffle: str, order: Order) -> None:
    plan = FaultPlan().kill(rank=1, at_report=8).kill(rank=0, at_report=5, attempt=2)
    batch = 10 if order == "local" else 20
    config = DataConfig(order=order)
    result = feeding(
        numbers(shuffle),
        batch=batch,
        epochs=2,
        every=3,
        max_failures=2,
        fault_plan=plan,
        dataset_config=config,
    ).fit()
    epochs = ids_by_epoch(result.path)
    assert len(result.attempts) == 3
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(ROWS))
    undisturbed = feeding(
        numbers(shuffle), batch=batch, epochs=2, every=3, dataset_config=config
    ).fit()
    assert ids_by_epoch(undisturbed.path) == epochs
    assert (epochs[0] == epochs[1]) == (not shuffle)


@pytest.mark.parametrize("order", ["local", "global"])
@pytest.mark.parametrize("shuffle", ["", "shuffled"])
@pytest.mark.parametrize("sizes", [(2, 3, 1), (3, 1, 2)])
def test_a_restore_with_another_number_of_workers(
    sizes: tuple[int, ...], shuffle: str, order: Order
) -> None:
    first, *others = sizes
    trainer = feeding(
        numbers(shuffle),
        workers=first,
        batch=12,
        epochs=2,
        fault_plan=FaultPlan().kill(rank=0, at_report=4),
        dataset_config=DataConfig(order=order),
    )
    path = stopped(trainer)
    for size in others:
        # The plan is not kept with a run: it is given to each trainer again.
        restored = DataParallelTrainer.restore(path, scaling_config=ScalingConfig(size))
        if size is not others[-1]:
            restored.fault_plan = FaultPlan().kill(rank=0, at_report=3, attempt=2)
            stopped(restored)
        else:
            result = restored.fit()
    epochs = ids_by_epoch(result.path)
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(ROWS))
    if order == "global":
        alone = feeding(
            numbers(shuffle), workers=1, batch=12, epochs=2, dataset_config=DataConfig(order=order)
        ).fit()
        assert ids_by_epoch(alone.path) == epochs


def stopped(trainer: DataParallelTrainer) -> str:
    """Fit until the failure that was planned; the run's directory."""
    with pytest.raises(WorkerGroupError) as raised:
        trainer.fit()
    assert raised.value.result is not None
    return raised.value.result.path


def test_asynchronous_checkpoints_carry_the_position() -> None:
    plan = FaultPlan().kill(rank=1, at_report=7).kill(rank=0, at_report=4, attempt=2)
    result = feeding(
        numbers("shuffled"), every=2, mode="async", max_failures=2, fault_plan=plan
    ).fit()
    assert len(result.attempts) == 3
    assert sorted(ids_by_epoch(result.path)[0]) == list(range(ROWS))


def test_an_epoch_that_was_over_is_not_begun_again() -> None:
    # The last batch of an epoch is reported, then a worker dies at the first one of the next.
    reports = ROWS // 2 // 10
    plan = FaultPlan().kill(rank=0, at_report=reports + 1)
    result = feeding(numbers("shuffled"), epochs=2, max_failures=1, fault_plan=plan).fit()
    epochs = ids_by_epoch(result.path)
    assert unlike(epochs[0], epochs[1])
    assert sorted(epochs[0]) == list(range(ROWS))


def test_a_dataset_that_is_complete_on_every_worker() -> None:
    result = feeding(
        numbers("shuffled"),
        batch=20,
        max_failures=1,
        fault_plan=FaultPlan().kill(rank=1, at_report=6),
        dataset_config=DataConfig(datasets_to_split=[]),
    ).fit()
    assert len(result.attempts) == 2
    assert sorted(ids_by_epoch(result.path)[0]) == sorted([*range(ROWS), *range(ROWS)])


def first_of_each_epoch(config: dict[str, Any]) -> None:
    """Leave every epoch after two batches."""
    shard = train.get_dataset_shard("train")
    checkpoint = train.get_checkpoint()
    for epoch in range(checkpoint.to_dict()["epoch"] if checkpoint else 0, 4):
        ids: list[int] = []
        for number, batch in enumerate(shard.iter_batches(batch_size=10)):
            ids += batch["id"].tolist()
            if number == 1:
                break
        saved = Checkpoint.from_dict({"epoch": epoch + 1})
        train.report({"epoch": epoch, "ids": ids}, saved)


def test_an_epoch_that_was_left_early_is_over() -> None:
    def fit(plan: FaultPlan | None) -> dict[int, list[int]]:
        result = DataParallelTrainer(
            first_of_each_epoch,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(verbose=0, failure_config=FailureConfig(1)),
            datasets={"train": numbers("shuffled")},
            fault_plan=plan,
        ).fit()
        return ids_by_epoch(result.path)

    assert fit(FaultPlan().kill(rank=0, at_report=3)) == fit(None)


@pytest.mark.parametrize("sizes", [(2, 1), (1, 3)], ids=["fewer", "more"])
def test_a_group_that_changes_its_size(
    sizes: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_configured", None)
    gate = tmp_path / "gate"

    class Room(Callback):
        """After the third report there is room for another number of workers."""

        def on_trial_result(
            self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **_: Any
        ) -> None:
            if result["training_iteration"] == 3 and not gate.exists():
                lockstep.init(num_cpus=sizes[1])
                gate.touch()

    def feed_and_wait(config: dict[str, Any]) -> None:
        import os
        import time

        report = train.report
        count = 0

        def reported(*args: Any, **options: Any) -> None:
            nonlocal count
            report(*args, **options)
            count += 1
            if count == 3 and train.get_context().get_attempt() == 1:
                deadline = time.monotonic() + 120
                while not os.path.exists(config["gate"]) and time.monotonic() < deadline:
                    time.sleep(0.002)
                if sizes[1] < sizes[0] and train.get_context().get_world_rank() == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        train.report = reported
        feed(config)

    lockstep.init(num_cpus=sizes[0])
    result = DataParallelTrainer(
        feed_and_wait,
        train_loop_config={"batch": 10, "epochs": 2, "gate": str(gate)},
        scaling_config=ScalingConfig(num_workers=(1, 3)),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(1), callbacks=[Room()]),
        datasets={"train": numbers("shuffled")},
    ).fit()
    assert [len(attempt["workers"]) for attempt in result.attempts] == list(sizes)
    epochs = ids_by_epoch(result.path)
    assert sorted(epochs[1]) == list(range(ROWS))
    # Equal shares of what was left may leave out a row for all but one of the workers.
    assert len(set(epochs[0])) == len(epochs[0]) >= ROWS - sizes[1] + 1


DRIVER = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import lockstep.data
from lockstep import train
from tests.integration.data.feeding import feed

def killing(config):
    report = train.report
    def reported(*args, **options):
        report(*args, **options)
        config["count"] = config.get("count", 0) + 1
        if config["count"] == 6 and train.get_context().get_world_rank() == 0:
            os.kill(config["driver"], signal.SIGKILL)
    train.report = reported
    feed(config)

data = lockstep.data.range({rows}, override_num_blocks=7)
train.DataParallelTrainer(
    killing,
    train_loop_config={{"batch": 10, "epochs": 1, "driver": os.getpid()}},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", verbose=0, storage_path={storage!r}),
    datasets={{"train": data.random_shuffle()}},
).fit()
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("size", [2, 3])
def test_a_killed_driver_costs_no_row(tmp_path: Path, size: int) -> None:
    tests, storage = str(ROOT), str(tmp_path / "results")
    source = DRIVER.format(tests=tests, rows=ROWS, storage=storage)
    script = tmp_path / "driver.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, str(script)], env={"PYTHONPATH": str(SRC)}, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL
    path = Result.from_path(tmp_path / "results" / "run").path
    before = sum(map(len, ids_by_epoch(path).values()))
    assert 0 < before < ROWS
    # Its seed was drawn there: the same one has to order the rest.
    result = DataParallelTrainer.restore(
        path, train_loop_per_worker=feed, scaling_config=ScalingConfig(size)
    ).fit()
    assert sorted(ids_by_epoch(result.path)[0]) == list(range(ROWS))
