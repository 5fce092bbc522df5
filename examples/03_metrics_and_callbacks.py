"""Metrics from every rank: reduced, kept apart, logged at every step, and seen by callbacks."""

from typing import Any

from lockstep import train
from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig, UserCallback
from lockstep.tune.logger import LoggerCallback


class PrintAccuracy(LoggerCallback):
    def log_trial_result(self, iteration: int, trial: Any, result: dict) -> None:
        print(f"callback: {trial} iteration {iteration}, mean loss {result['loss']:.3f}")


class SlowestRank(UserCallback):
    def __init__(self) -> None:
        self.slowest: list[int] = []

    def after_report(self, run_context: Any, metrics: list, checkpoint: Any) -> None:
        seconds = [rank["seconds"] for rank in metrics]
        self.slowest.append(seconds.index(max(seconds)))


def train_func(config: dict) -> None:
    rank = train.get_context().get_world_rank()
    for epoch in range(config["epochs"]):
        for step in range(100):
            train.log({"step_loss": 1 / (1 + step)}, step=epoch * 100 + step)  # never waits
        metrics = {"loss": 1.0 + rank, "seconds": 0.1 * (rank + 1)}
        train.report(metrics, reduce={"loss": "mean", "seconds": "max"})


if __name__ == "__main__":
    slowest = SlowestRank()
    result = DataParallelTrainer(
        train_func,
        train_loop_config={"epochs": 3},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(callbacks=[PrintAccuracy(), slowest]),
    ).fit()
    print("reduced:   ", result.reported_metrics)
    print("by rank:   ", result.metrics_by_rank)
    print("slowest:   ", slowest.slowest)
    print("log rows:  ", len(result.log_dataframe))
