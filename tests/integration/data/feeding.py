"""A training function that tells which rows it was given, and what a run's journal says of them."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from lockstep import train
from lockstep.config import CheckpointUploadMode
from lockstep.run_layout import JOURNAL_FILE
from lockstep.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig


def feed(config: dict[str, Any]) -> None:
    """Report the ids of each batch; a checkpoint with every ``every``-th."""
    shard = train.get_dataset_shard("train")
    checkpoint = train.get_checkpoint()
    first = 0 if checkpoint is None else checkpoint.to_dict()["epoch"]
    mode = CheckpointUploadMode(config.get("mode", "sync"))
    count = 0
    for epoch in range(first, config["epochs"]):
        for batch in shard.iter_batches(batch_size=config["batch"]):
            count += 1
            saved = None
            if count % config.get("every", 1) == 0:
                saved = Checkpoint.from_dict({"epoch": epoch})
            metrics = {"epoch": epoch, "ids": batch["id"].tolist()}
            train.report(metrics, saved, checkpoint_upload_mode=mode)


def feeding(
    dataset: Any, *, workers: int | tuple[int, int] = 2, max_failures: int = 0, **options: Any
) -> DataParallelTrainer:
    """A trainer of ``feed``; what is not a trainer's argument is the function's."""
    given = {key: options.pop(key) for key in ("fault_plan", "dataset_config") if key in options}
    return DataParallelTrainer(
        feed,
        train_loop_config={"batch": 10, "epochs": 1, **options},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures)),
        datasets={"train": dataset},
        **given,
    )


def kept_reports(path: str | Path) -> list[dict[str, Any]]:
    """The run's reports, without those that a later attempt did over."""
    kept: list[dict[str, Any]] = []
    safe = 0
    for line in Path(path, JOURNAL_FILE).read_text().splitlines():
        record = json.loads(line)
        if record["event"] == "checkpoint":
            safe = record["index"]
        elif record["event"] == "attempt":
            kept = [report for report in kept if report["index"] <= safe]
        elif record["event"] == "report":
            kept.append(record)
    return kept


def ids_by_epoch(path: str | Path) -> dict[int, list[int]]:
    """Epoch → the ids that all ranks were given in it, in the order of the reports and ranks."""
    found: dict[int, list[int]] = defaultdict(list)
    for report in kept_reports(path):
        for metrics in report["ranks"]:
            found[metrics["epoch"]] += metrics["ids"]
    return dict(found)
