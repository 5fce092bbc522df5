"""Lightning's own loggers, one for each tracker, inside a TorchTrainer: page 002."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import train
from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer
from tests.trackers import readers
from tests.trackers.installed import need

need("comet_ml", "lightning", "mlflow", "tensorboard", "wandb")

pytestmark = pytest.mark.timeout(180)


def train_func(config: dict[str, Any]) -> None:
    """Every rank has its own plain Lightning trainer; rank 0 has the loggers."""
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.loggers import (
        CometLogger,
        MLFlowLogger,
        TensorBoardLogger,
        WandbLogger,
    )
    from torch.utils.data import DataLoader, TensorDataset

    class DummyModel(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.layer(batch[0]).square().mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    place = config["save_dir"]
    context = train.get_context()
    loggers: Any = False
    if context.get_world_rank() == 0:
        loggers = [
            WandbLogger(project="page", offline=True, save_dir=place, id=context.get_trial_id()),
            MLFlowLogger(experiment_name="page", tracking_uri=f"file:{place}/mlruns"),
            CometLogger(offline_directory=f"{place}/comet"),
            TensorBoardLogger(save_dir=f"{place}/tensorboard"),
        ]
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=loggers,
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
    trainer.fit(DummyModel(), data)
    train.report({"steps": trainer.global_step})


def test_lightnings_loggers_work_inside_a_torch_trainer(libraries: None, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    from lockstep.trackers.mlflow_client import file_store_allowed

    # CometLogger(online=False) logs nothing; the variable makes it write an archive.
    lockstep.init(runtime_env={"env_vars": {"COMET_START_ONLINE": "false"}})
    result = TorchTrainer(
        train_func,
        train_loop_config={"save_dir": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0),
    ).fit()
    lockstep.shutdown()
    assert result.metrics_by_rank == [{"steps": 4}, {"steps": 4}]

    (run,) = readers.wandb_runs(tmp_path)
    assert run.id == result.metrics["trial_id"]
    assert sum("train_loss" in row for row in run.history) == 4

    uri = f"file:{tmp_path}/mlruns"
    with file_store_allowed(uri):
        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("page")
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.status == "FINISHED"
    assert len(client.get_metric_history(logged.info.run_id, "train_loss")) == 4

    (archive,) = readers.comet_archives(tmp_path / "comet")
    assert sum(name == "train_loss" for name, _, _ in archive.metrics) == 4

    (events,) = (tmp_path / "tensorboard").rglob("events.out.tfevents*")
    assert [step for step, _ in readers.scalars(events.parent)["train_loss"]] == [0, 1, 2, 3]
