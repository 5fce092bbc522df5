"""TensorBoard event files: from a callback that any run can have, and from Lightning's logger."""

import tempfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, TensorDataset

from lockstep import train
from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer
from lockstep.tune.logger import TBXLoggerCallback


class DummyModel(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = (self.layer(batch[0]) - 1).square().mean()
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_end(self) -> None:
        train.report({"loss": self.trainer.callback_metrics["train_loss"].item()})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def train_func(config: dict) -> None:
    rank = train.get_context().get_world_rank()
    logger = TensorBoardLogger(config["save_dir"]) if rank == 0 else False
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DummyModel(), DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=16))


def show(name: str, directory: str, tag: str) -> None:
    events = EventAccumulator(directory).Reload()
    print(f"{name}: {tag} at steps {[event.step for event in events.Scalars(tag)]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as save_dir:
        result = TorchTrainer(
            train_func,
            train_loop_config={"save_dir": save_dir},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(callbacks=[TBXLoggerCallback()]),
        ).fit()
        show("callback", result.path, "loss")
        show("lightning", f"{save_dir}/lightning_logs/version_0", "train_loss")
    print("tensorboard --logdir", result.log_dir.parent)
