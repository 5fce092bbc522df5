"""num_workers=0 runs the training function in this process, so a debugger works inside it.

Uncomment the breakpoint and run it from a terminal.
"""

import os

from lockstep import train
from lockstep.train import DataParallelTrainer, ScalingConfig


def train_func() -> None:
    loss = 1.0
    for step in range(3):
        loss /= 2
        # breakpoint()
        train.report({"step": step, "loss": loss, "my_pid": os.getpid()})


if __name__ == "__main__":
    result = DataParallelTrainer(train_func, scaling_config=ScalingConfig(num_workers=0)).fit()
    print("same process:", result.metrics["my_pid"] == os.getpid())
    print(result.metrics_dataframe[["step", "loss"]].to_string(index=False))
