"""Read files, transform, split and shuffle them; train on shards; see every row once."""

import tempfile
from pathlib import Path

import numpy as np

import lockstep.data
from lockstep import train
from lockstep.train import DataConfig, DataParallelTrainer, ScalingConfig


def write_files(folder: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10_000, 4))
    y = x @ [1.0, -2.0, 3.0, 0.5] + 7
    rows = lockstep.data.from_numpy({"id": np.arange(10_000), "x": x, "y": y})
    rows.write_parquet(folder, num_rows_per_file=2_500, row_group_size=500)


def train_func(config: dict) -> None:
    shard = train.get_dataset_shard("train")
    weights = np.zeros(5)
    for _ in range(config["epochs"]):
        for batch in shard.iter_batches(batch_size=100):
            inputs = np.column_stack([batch["x"], np.ones(len(batch["y"]))])
            error = inputs @ weights - batch["y"]
            weights -= 0.1 * inputs.T @ error / len(error)
    test = train.get_dataset_shard("test")
    seen = sum(len(batch["id"]) for batch in test.iter_batches())
    report = {"bias": float(weights[4]), "rows": shard.count(), "tested": seen}
    train.report(report, reduce={"tested": "sum"})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        dataset = lockstep.data.read_parquet(folder)
        print("columns:   ", dataset.columns(), "in", dataset.num_blocks(), "blocks")
        print("mean of y: ", round(dataset.mean("y"), 1))

        scaled = dataset.filter(expr="y > 0").add_column(
            "y", lambda batch: batch["y"] * 2, batch_format="numpy"
        )
        training, testing = scaled.train_test_split(0.2, shuffle=True, seed=1)
        print("split:     ", training.count(), "+", testing.count(), "=", scaled.count())

        result = DataParallelTrainer(
            train_func,
            train_loop_config={"epochs": 3},
            datasets={"train": training.random_shuffle(seed=1), "test": testing},
            dataset_config=DataConfig(equal=False),
            scaling_config=ScalingConfig(num_workers=2),
        ).fit()
        print("bias:      ", round(result.metrics["bias"], 1))
        print("tested:    ", result.metrics["tested"], "rows, each by one worker")
