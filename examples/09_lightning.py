"""Train a Lightning module on two workers, data-parallel, with a checkpoint after each epoch."""

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.lightning import LockstepDDPStrategy, LockstepReportCallback, prepare_trainer
from lockstep.train.torch import TorchTrainer


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
        )

    def training_step(self, batch, index):
        x, y = batch
        scores = self.layers(x)
        self.log("accuracy", (scores.argmax(1) == y).float().mean(), on_epoch=True, sync_dist=True)
        return torch.nn.functional.cross_entropy(scores, y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def train_func(config: dict) -> None:
    torch.manual_seed(0)
    x = torch.rand(1024, 2)
    y = (x[:, 0] > x[:, 1]).long()
    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        accelerator="cpu",
        strategy=LockstepDDPStrategy(),
        callbacks=[LockstepReportCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    prepare_trainer(trainer).fit(Classifier(), DataLoader(TensorDataset(x, y), batch_size=32))


if __name__ == "__main__":
    result = TorchTrainer(
        train_func,
        train_loop_config={"epochs": 4},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="lightning"),
    ).fit()
    print(result.metrics_dataframe[["epoch", "step", "accuracy"]].to_string(index=False))
    with result.checkpoint.as_directory() as directory:
        model = Classifier.load_from_checkpoint(
            f"{directory}/{LockstepReportCallback.CHECKPOINT_NAME}"
        )
    print(f"0.9 > 0.1: {model.layers(torch.tensor([0.9, 0.1])).argmax().item() == 1}")
