"""A run breaks: the guard says where, replay looks, verify compares, a fork continues."""

import random

from lockstep import data, train
from lockstep.testing import verify_run
from lockstep.train import DataParallelTrainer, Guard, RunConfig, TrainingFailedError


def rows(broken: int | None) -> data.Dataset:
    return data.from_items(
        [{"x": float("nan") if row == broken else row / 96} for row in range(96)]
    )


def train_func(config: dict) -> None:
    random.seed(0)
    state = train.State(weight=0.0)  # and the random generators
    state.restore()
    for batch in train.get_dataset_shard("train").iter_batches(batch_size=8):
        x = batch["x"]
        error = state.weight * x - (2 * x + random.gauss(0, 0.1))
        state.weight -= config["lr"] * float((2 * error * x).mean())
        train.report({"loss": float((error**2).mean())}, checkpoint=state)


if __name__ == "__main__":
    trainer = DataParallelTrainer(
        train_func,
        train_loop_config={"lr": 0.1},
        datasets={"train": rows(broken=60)},  # the fault
        run_config=RunConfig(name="broken", verbose=0, guard=Guard(action="stop")),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        run = error.result
        print(error, end="\n\n")

    def probe(variables: dict) -> None:
        x = variables["x"]
        print(f"step 5 had x from {x.min():.3f} to {x.max():.3f}")

    run.replay(5, probe)
    print("from step 2:", "the same" if verify_run(run.path, step=2, steps=3).ok else "different")

    mended = {"train": rows(broken=None)}
    fork = DataParallelTrainer.fork(run.path, datasets=mended).fit()
    print("the fork went from step", fork.forked_at, "to", fork.metrics["training_iteration"])
