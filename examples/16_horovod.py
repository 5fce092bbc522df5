"""A Horovod function, unchanged, on two workers; one of them is killed and the run resumes.

Needs Horovod: python scripts/install_horovod.py
"""

from typing import Any

import horovod.torch as hvd
import torch

from lockstep import train
from lockstep.testing import FaultPlan
from lockstep.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from lockstep.train.horovod import HorovodTrainer


def train_func(config: dict[str, Any]) -> None:
    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"] * hvd.size())
    first = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        saved = checkpoint.to_dict()
        model.load_state_dict(saved["model"])
        first = saved["epoch"] + 1
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    torch.manual_seed(hvd.rank())  # each worker has data of its own
    inputs = torch.randn(100, 2)
    targets = inputs @ torch.tensor([[2.0], [-1.0]])
    for epoch in range(first, config["epochs"]):
        for batch in range(0, 100, 10):
            optimizer.zero_grad()
            some = slice(batch, batch + 10)
            torch.nn.functional.mse_loss(model(inputs[some]), targets[some]).backward()
            optimizer.step()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        mean_loss = hvd.allreduce(loss.detach()).item()
        checkpoint = None
        if hvd.rank() == 0:
            checkpoint = Checkpoint.from_dict({"epoch": epoch, "model": model.state_dict()})
        train.report({"epoch": epoch, "loss": mean_loss}, checkpoint=checkpoint)


if __name__ == "__main__":
    result = HorovodTrainer(
        train_func,
        train_loop_config={"lr": 0.05, "epochs": 6},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1)),
        fault_plan=FaultPlan().kill(rank=1, at_report=4),  # for the demonstration
    ).fit()
    print(result.metrics_dataframe[["epoch", "attempt", "loss"]].to_string(index=False))
    weights = result.checkpoint.to_dict()["model"]["weight"][0].tolist()
    print("learned:", [round(weight, 1) for weight in weights])
