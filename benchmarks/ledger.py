"""Does `lockstep why` predict what a run takes once a slow rank, slow data or a cost is removed?

A fault is injected, the run is replayed without it from its journal, and the fault is removed for
real. The ratio is the smaller of the two times to the larger: 1 is exact, and we want 0.9.
"""

from __future__ import annotations

import time
from typing import Any

import common
from common import Against, Bench, Measurement, Reach

FILE = "ledger.py"
STEPS = 30
STEP_S = 0.05


# Programs.


def train(config: dict[str, Any]) -> None:
    import numpy as np

    from lockstep import train

    rank = train.get_context().get_world_rank()
    weights = {"weights": np.ones(4 << 20)}
    batches = iter(range(STEPS))
    if config["data_s"] is not None:
        shard = train.get_dataset_shard("train")
        batches = iter(shard.iter_batches(batch_size=1, prefetch_batches=0))
    for step, _ in enumerate(batches):
        time.sleep(STEP_S + config["slower_s"] * (rank == 1))
        save = config["every"] and rank == 0 and step % config["every"] == 0
        train.report(
            {"step": step}, checkpoint=train.Checkpoint.from_dict(weights) if save else None
        )


def play_lockstep(config: dict[str, Any]) -> None:
    from lockstep import data
    from lockstep.journal.records import RunRecords
    from lockstep.ledger import read_ledger
    from lockstep.ledger.what_if import (
        saved_by_fewer_checkpoints,
        saved_without_data_waits,
        saved_without_rank,
    )
    from lockstep.storage import open_storage
    from lockstep.train import CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig

    def late(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(config["data_s"])
        return batch

    datasets = {}
    if config["data_s"] is not None:
        rows = data.from_items(list(range(STEPS * common.WORKERS)))
        datasets["train"] = rows.map_batches(late, batch_size=1)
    result = DataParallelTrainer(
        train,
        train_loop_config=config,
        datasets=datasets,
        scaling_config=ScalingConfig(num_workers=common.WORKERS),
        run_config=RunConfig(
            verbose=0,
            storage_path=config["work"] + "/runs",
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
    ledger = read_ledger(RunRecords(open_storage(result.path)))
    (attempt,) = ledger.attempts
    # From the first report to the last: how long the workers start differs from run to run.
    attempt.intervals = [one for one in attempt.intervals[1:] if one.index is not None]
    seconds = sum(one.seconds for one in attempt.intervals)
    saved = {
        "rank": lambda: saved_without_rank(ledger, 1),
        "data": lambda: saved_without_data_waits(ledger),
        "checkpoints": lambda: saved_by_fewer_checkpoints(ledger),
    }[config["fault"]]()
    common.emit(config["out"], seconds=seconds, predicted=seconds - saved)


# Measuring.

PLAIN: dict[str, Any] = {"slower_s": 0.0, "data_s": None, "every": 0}
CASES = {
    "rank": ("a rank 100 ms slower", {"slower_s": 0.1}, {}),
    "data": ("batches 80 ms late", {"data_s": 0.08}, {"data_s": 0.0}),
    "checkpoints": ("checkpoints of 32 MB, half as many", {"every": 1}, {"every": 2}),
}


def measure(bench: Bench) -> list[Measurement]:
    """Each fault in turn with its removal."""
    found = []
    for fault, (what, injected, removed) in CASES.items():
        bench.say(what)
        real, predicted = [], []
        for _ in range(bench.times(5, 1)):
            with_fault = _run(bench, fault, injected)
            without = _run(bench, fault, removed)
            said, took = with_fault["predicted"], without["seconds"]
            # Off by as much upwards counts as off downwards: the ratio is at most 1.
            predicted.append(took * min(said / took, took / said))
            real.append(took)
        says = Against(
            "lockstep why of the run with it", predicted, Reach(0.9, "within 10 %"), in_turn=True
        )
        found.append(Measurement(f"a run without {what}", "s", real, against=[says]))
    return found


def _run(bench: Bench, fault: str, changes: dict[str, Any]) -> dict[str, Any]:
    config = {**PLAIN, **changes, "fault": fault}
    record: dict[str, Any] = bench.run(FILE, "lockstep", **config)[2][-1]
    return record


if __name__ == "__main__":
    common.play({"lockstep": play_lockstep})
