"""Prove that a training function survives a failure. Without its momentum it does not."""

from lockstep import train
from lockstep.testing import FaultPlan, verify_resume
from lockstep.train import (
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
)


def train_func(config: dict) -> None:
    weight, momentum, start = 0.0, 0.0, 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        state = checkpoint.to_dict()
        weight, start = state["weight"], state["epoch"] + 1
        if config["load_momentum"]:
            momentum = state["momentum"]
    for epoch in range(start, 6):
        gradient = weight - 3
        momentum = 0.9 * momentum + 0.1 * gradient
        weight -= momentum
        state = {"weight": weight, "momentum": momentum, "epoch": epoch}
        metrics = {"epoch": epoch, "loss": gradient**2}
        train.report(metrics, checkpoint=Checkpoint.from_dict(state))


def make_trainer(load_momentum: bool, **options) -> DataParallelTrainer:
    return DataParallelTrainer(
        train_func,
        train_loop_config={"load_momentum": load_momentum},
        scaling_config=ScalingConfig(num_workers=2),
        **options,
    )


if __name__ == "__main__":
    for load_momentum in (True, False):
        report = verify_resume(make_trainer(load_momentum))
        print(f"load_momentum={load_momentum}: {report}")

    # Your own fault plan: the run fails twice.
    plan = FaultPlan().kill(rank=1, at_report=3).raise_in(rank=0, at_report=2, attempt=2)
    run_config = RunConfig(verbose=0, failure_config=FailureConfig(max_failures=2))
    result = make_trainer(True, run_config=run_config, fault_plan=plan).fit()
    print(plan)
    print("attempts:", result.metrics_dataframe["attempt"].tolist())
