"""Log to Weights & Biases, offline: from the training function, through a crash, and by callback.

With a key (`wandb login`, or `lockstep.init(runtime_env={"env_vars": {"WANDB_API_KEY": …}})`) leave
out `mode="offline"`.
"""

import tempfile
from pathlib import Path

import torch

from lockstep import train
from lockstep.air.integrations.wandb import WandbLoggerCallback, setup_wandb
from lockstep.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer, prepare_data_loader, prepare_model, unwrap_model


def train_func(config: dict) -> None:
    # On rank 0: wandb.init(id=<trial id>, …), finished with this function. Other ranks log nothing.
    run = setup_wandb(config, project="function", mode="offline", dir=config["shared"])
    saved = train.load_checkpoint()
    start = saved["epoch"] + 1 if saved else 0
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(256, 4))
    loader = prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=32, shuffle=True))
    model = torch.nn.Linear(4, 1)
    if saved:
        model.load_state_dict(saved["weights"])
    model = prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(start, 3):
        for (x,) in loader:
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        run.log({"loss": loss.item(), "epoch": epoch})
        state = {"epoch": epoch, "weights": unwrap_model(model).state_dict()}
        train.report({"loss": loss.item()}, checkpoint=Checkpoint.from_dict(state))
        if epoch == 1 and train.get_context().get_attempt() == 1:
            raise RuntimeError("a crash, to show that both attempts log to the same run")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as shared:
        result = TorchTrainer(
            train_func,
            train_loop_config={"lr": 0.05, "shared": shared},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                failure_config=FailureConfig(max_failures=1),
                callbacks=[
                    WandbLoggerCallback(project="callback", mode="offline", dir=f"{shared}/driver")
                ],
            ),
        ).fit()
        print("trial:        ", result.metrics["trial_id"])
        for name, place in (("from callback", "driver/wandb"), ("from function", "wandb")):
            runs = sorted(path.name for path in Path(shared, place).glob("offline-run-*"))
            print(f"{name}: ", *(name.partition("-run-")[2] for name in runs))
        print("to upload:     wandb sync DIRECTORY/offline-run-*")
