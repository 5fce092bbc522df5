"""Keep the best checkpoints, survive a failure, and start a new run from a checkpoint."""

import os

from lockstep import train
from lockstep.train import (
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
)


def train_func(config: dict) -> None:
    weight, start = 0.0, 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        state = checkpoint.to_dict()
        weight, start = state["weight"], state["epoch"] + 1
    context = train.get_context()
    for epoch in range(start, config["epochs"]):
        if epoch == 3 and context.get_attempt() == 1 and context.get_world_rank() == 1:
            os._exit(1)  # a worker that dies without an exception
        weight += (1.0 - weight) * 0.5
        state = Checkpoint.from_dict({"weight": weight, "epoch": epoch})
        train.report({"epoch": epoch, "error": 1.0 - weight}, checkpoint=state)


if __name__ == "__main__":
    run_config = RunConfig(
        failure_config=FailureConfig(max_failures=1),
        checkpoint_config=CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="error", checkpoint_score_order="min"
        ),
    )
    first = DataParallelTrainer(
        train_func,
        train_loop_config={"epochs": 5},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run_config,
    ).fit()
    columns = ["attempt", "epoch", "error", "checkpoint_dir_name"]
    print(first.metrics_dataframe[columns].to_string(index=False))

    second = DataParallelTrainer(
        train_func,
        train_loop_config={"epochs": 8},
        scaling_config=ScalingConfig(num_workers=2),
        resume_from_checkpoint=first.checkpoint,
    ).fit()
    print(f"continued at epoch {second.metrics_dataframe['epoch'].iloc[0]}, ", end="")
    print(f"ended with error {second.metrics['error']:.4f}")
