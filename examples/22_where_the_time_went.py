"""Find the rank that slows a run down, and what it costs; then branch off at a checkpoint."""

import time

from lockstep import cli, train
from lockstep.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig


def train_func(config: dict) -> None:
    checkpoint = train.get_checkpoint()
    state = checkpoint.to_dict() if checkpoint else {"weight": 0.0, "step": 0}
    weight, rank = state["weight"], train.get_context().get_world_rank()
    for step in range(state["step"] + 1, 31):
        time.sleep(0.02)  # the work of a step
        if rank == 3:
            time.sleep(config["slower"])  # the fault: this rank's machine is hot
        weight -= config["lr"] * 2 * (weight - 3)
        saved = Checkpoint.from_dict({"weight": weight, "step": step}) if step % 10 == 0 else None
        train.report({"loss": (weight - 3) ** 2}, checkpoint=saved)


if __name__ == "__main__":
    result = DataParallelTrainer(
        train_func,
        train_loop_config={"lr": 0.05, "slower": 0.04},
        scaling_config=ScalingConfig(num_workers=4),
        run_config=RunConfig(name="hot", verbose=0),
    ).fit()
    cli.main(["why", result.path])
    print("\nranks 0 and 3 wait:", *(f"{result.goodput.ranks[r]['ranks']:.0%}" for r in (0, 3)))

    # From step 20 on: the machine is cooled, and the learning rate is lower.
    changes = {"lr": 0.01, "slower": 0.0}
    fork = DataParallelTrainer.fork(result.path, step=20, train_loop_config=changes).fit()
    print("the fork has:", len(fork.metrics_dataframe), "reports of its own and", end=" ")
    print(len(fork.history_dataframe) - 10, "of its parent's, up to step", fork.forked_at)
