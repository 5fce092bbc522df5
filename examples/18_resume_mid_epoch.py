"""A worker is killed in the middle of an epoch; the data resumes exactly where it was.

The run is then restored with three workers instead of two: still every row once an epoch.
"""

import json
import os
from collections import Counter
from pathlib import Path

import lockstep.data
from lockstep import train
from lockstep.train import (
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
)

ROWS, EPOCHS = 1200, 2


def train_func(config: dict) -> None:
    shard = train.get_dataset_shard("train")
    checkpoint = train.get_checkpoint()
    first = checkpoint.to_dict()["epoch"] if checkpoint else 0
    context = train.get_context()
    for epoch in range(first, EPOCHS):
        for step, batch in enumerate(shard.iter_batches(batch_size=50)):
            if epoch == 1 and step == 3 and context.get_attempt() <= 2:
                os._exit(1)  # twice: the second time ends the run
            metrics = {"epoch": epoch, "ids": batch["id"].tolist()}
            train.report(metrics, checkpoint=Checkpoint.from_dict({"epoch": epoch}))


def rows_read(path: str) -> list[Counter]:
    """How often each row was given to some worker, for each epoch."""
    read = [Counter() for _ in range(EPOCHS)]
    for line in Path(path, "journal.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["event"] == "report":
            for rank in record["ranks"]:
                read[rank["epoch"]].update(rank["ids"])
    return read


if __name__ == "__main__":
    trainer = DataParallelTrainer(
        train_func,
        datasets={"train": lockstep.data.range(ROWS).random_shuffle(seed=1)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1)),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        path = error.result.path
    print(f"read in epoch 1 so far: {len(rows_read(path)[1])} rows")

    result = DataParallelTrainer.restore(path, scaling_config=ScalingConfig(num_workers=3)).fit()
    for epoch, read in enumerate(rows_read(result.path)):
        print(f"epoch {epoch}: {len(read)} rows, each {set(read.values())} time")
    sizes = [len(attempt["workers"]) for attempt in result.attempts]
    print(f"workers: {sizes}, waiting for data: {result.metrics['data_wait']:.0%}")
