"""Lightning inside workers: with and without lockstep's strategy, and with both packages."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.train import (
    Checkpoint,
    CheckpointUploadMode,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from lockstep.train.backend import Backend
from lockstep.train.lightning import prepare_trainer
from lockstep.train.torch import TorchTrainer
from lockstep.train.torch.backend import TorchBackend
from tests.train.torch.ranks import forked_with

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("lightning") is None
        or importlib.util.find_spec("pytorch_lightning") is None,
        reason="Lightning is not installed",
    ),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module", autouse=True)
def _torchmetrics_in_workers() -> Iterator[None]:
    """Most of what Lightning imports. Lightning itself looks for its rank when it is imported."""
    with forked_with("torchmetrics"), forked_with("torchmetrics", backend=Backend):
        yield


def regression(pl: Any) -> tuple[Any, Any]:
    """A module that counts its training rows, and a loader of 16 rows."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Regression(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.rows = 0

        def loss(self, batch: Any) -> Any:
            x, y = batch
            return (self.layer(x) - y).square().mean()

        def training_step(self, batch: Any, index: int) -> Any:
            self.rows += len(batch[0])
            loss = self.loss(batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", self.loss(batch), sync_dist=True)

        def configure_optimizers(self) -> Any:
            # An optimizer with state: Lightning cannot load an empty, sharded one.
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.1)

    torch.manual_seed(0)  # from this start every epoch improves
    x = torch.arange(32.0).reshape(16, 2) / 32
    return Regression(), DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def quiet(pl: Any, **options: Any) -> Any:
    options.setdefault("accelerator", "cpu")
    options.setdefault("logger", False)
    options.setdefault("enable_checkpointing", False)
    return pl.Trainer(
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **options,
    )


def fit(function: Any, path: Path, *, workers: int = 2, **options: Any) -> Result:
    failures = FailureConfig(options.pop("max_failures", 0))
    return TorchTrainer(
        function,
        train_loop_config={"directory": str(path)},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=str(path / "runs"), verbose=0, failure_config=failures, **options
        ),
    ).fit()


def test_ddp_reports_each_epoch_and_resumes_after_a_failure(tmp_path: Path) -> None:
    def function(config: dict[str, Any]) -> None:
        import lightning.pytorch as pl
        from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

        from lockstep.train.lightning import LockstepDDPStrategy, LockstepReportCallback

        class Fails(pl.Callback):  # type: ignore[misc]
            def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
                context = train.get_context()
                if (context.get_attempt(), context.get_world_rank(), trainer.current_epoch) == (
                    1,
                    1,
                    2,
                ):
                    os._exit(3)

        module, loader = regression(pl)
        trainer = quiet(
            pl,
            max_epochs=3,
            strategy=LockstepDDPStrategy(),
            callbacks=[LockstepReportCallback(), Fails()],
            logger=[
                CSVLogger(config["directory"], name="csv"),
                TensorBoardLogger(config["directory"], name="tensorboard"),
            ],
        )
        trainer = train.lightning.prepare_trainer(trainer)
        checkpoint = train.get_checkpoint()
        if checkpoint is None:
            trainer.fit(module, loader, loader)
        else:
            with checkpoint.as_directory() as directory:
                path = os.path.join(directory, LockstepReportCallback.CHECKPOINT_NAME)
                trainer.fit(module, loader, loader, ckpt_path=path)
        train.report(
            {
                "rows": module.rows,
                "weight": module.layer.weight[0, 0].item(),
                "place": [trainer.global_rank, trainer.local_rank, trainer.world_size],
                "variable": os.environ["WORLD_SIZE"],
            }
        )

    result = fit(function, tmp_path, max_failures=1)

    table = result.metrics_dataframe
    assert table is not None
    epochs = table.iloc[:-1]
    assert list(epochs["epoch"]) == [0, 1, 2]
    assert list(epochs["step"]) == [2, 4, 6]
    assert list(epochs["attempt"]) == [1, 1, 2]
    assert epochs["loss"].is_monotonic_decreasing
    assert epochs["val_loss"].is_monotonic_decreasing
    first, second = result.metrics_by_rank
    assert first["rows"] == second["rows"] == 8  # its half of the only epoch of this attempt
    assert first["weight"] == second["weight"]
    assert (first["place"], second["place"]) == ([0, 0, 2], [1, 1, 2])
    assert first["variable"] == "2"
    assert len(result.best_checkpoints) == 3
    assert result.checkpoint is not None
    assert _lightning_state(result.checkpoint)["global_step"] == 6
    assert list(Path(result.path).glob(".snapshot-*")) == []
    assert "val_loss" in _only(tmp_path.glob("csv/version_*/metrics.csv"), newest=True).read_text()
    assert list(tmp_path.glob("tensorboard/version_*/events.out.tfevents.*"))


def _lightning_state(checkpoint: Checkpoint) -> dict[str, Any]:
    import torch

    with checkpoint.as_directory() as directory:
        path = os.path.join(directory, "checkpoint.ckpt")
        state: dict[str, Any] = torch.load(path, weights_only=False)
    return state


def _only(paths: Any, newest: bool = False) -> Path:
    found: list[Path] = sorted(paths)
    assert found
    assert newest or len(found) == 1
    return found[-1]


def test_a_worker_that_was_forked_with_lightning_has_its_own_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a warm server. Lightning looks for its rank when it is imported."""

    def function(config: dict[str, Any]) -> None:
        imported = "lightning_fabric" in sys.modules
        from lightning_fabric.utilities import rank_zero

        decorator: Any = rank_zero.rank_zero_only
        train.report({"imported": imported, "rank": decorator.rank})

    monkeypatch.setattr(TorchBackend, "preload", (*TorchBackend.preload, "lightning_fabric"))
    found = fit(function, tmp_path).metrics_by_rank
    assert [(rank["imported"], rank["rank"]) for rank in found] == [(True, 0), (True, 1)]


def test_a_plain_trainer_trains_alone(tmp_path: Path) -> None:
    """Each worker trains separately, on all data, at its own speed."""

    def function(config: dict[str, Any]) -> None:
        import pytorch_lightning as pl
        from pytorch_lightning.callbacks import Callback
        from pytorch_lightning.loggers import CSVLogger

        class MyReportCallback(Callback):  # type: ignore[misc]
            def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                metrics = trainer.callback_metrics
                metrics = {k: v.item() for k, v in metrics.items()}
                train.report(metrics=metrics)

        module, loader = regression(pl)
        quiet(
            pl,
            max_epochs=2,
            callbacks=[MyReportCallback()],
            logger=CSVLogger(config["directory"], name="csv"),
        ).fit(module, loader)

        rank = train.get_context().get_world_rank()
        longer, loader = regression(pl)
        alone = quiet(pl, max_epochs=1 + rank)
        alone.fit(longer, loader)
        train.report(
            {
                "rows": module.rows,
                "longer": longer.rows,
                "strategy": type(alone.strategy).__name__,
                "world": [alone.world_size, os.environ["WORLD_SIZE"]],
            }
        )

    result = fit(function, tmp_path, workers=4)

    table = result.metrics_dataframe
    assert table is not None
    assert list(table["loss"].notna()) == [True, True, False]
    ranks = result.metrics_by_rank
    assert [rank["rows"] for rank in ranks] == [32] * 4
    assert [rank["longer"] for rank in ranks] == [16, 32, 48, 64]
    assert {rank["strategy"] for rank in ranks} == {"SingleDeviceStrategy"}
    assert ranks[1]["world"] == [1, "4"]
    # Lightning's loggers write on rank 0 only.
    assert "loss" in _only(tmp_path.glob("csv/version_*/metrics.csv")).read_text()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="MLflow is not installed")
def test_mlflow_logs_a_plain_trainer_by_itself(tmp_path: Path) -> None:
    def function(config: dict[str, Any]) -> None:
        import mlflow
        import pytorch_lightning as pl

        module, loader = regression(pl)
        first = train.get_context().get_world_rank() == 0
        if first:
            mlflow.set_tracking_uri(f"sqlite:///{config['directory']}/mlflow.db")
            mlflow.set_experiment("by itself")
            mlflow.pytorch.autolog(log_models=False, checkpoint=False)
        quiet(pl, max_epochs=2).fit(module, loader)
        run = mlflow.last_active_run() if first else None
        found = {} if run is None else {"status": run.info.status, "loss": run.data.metrics["loss"]}
        train.report(found)

    first, second = fit(function, tmp_path).metrics_by_rank
    assert (first["status"], second) == ("FINISHED", {})
    assert first["loss"] > 0


def test_the_other_package_the_old_names_and_an_early_stop(tmp_path: Path) -> None:
    def function(config: dict[str, Any]) -> None:
        import pytorch_lightning as pl

        from lockstep.train.lightning import (
            LockstepReportCallback,
            RayDDPStrategy,
            RayFSDPStrategy,
            RayLightningEnvironment,
            RayTrainReportCallback,
            prepare_trainer,
        )

        assert issubclass(RayDDPStrategy, pl.strategies.DDPStrategy)
        assert issubclass(RayFSDPStrategy, pl.strategies.FSDPStrategy)
        assert issubclass(RayTrainReportCallback, pl.Callback)
        assert RayTrainReportCallback is LockstepReportCallback
        # A class names its package when it is pickled: the reader may have imported the other.
        assert b"lockstep.train.lightning.on_pytorch_lightning" in pickle.dumps(RayDDPStrategy)
        assert "lightning.pytorch" not in sys.modules

        with pytest.raises(RuntimeError, match="SingleDeviceStrategy, which does not train across"):
            prepare_trainer(quiet(pl))
        with pytest.raises(ValueError, match=r"expected CheckpointUploadMode\.SYNC or ASYNC"):
            RayTrainReportCallback(CheckpointUploadMode.NO_UPLOAD)
        with pytest.warns(UserWarning, match="start_method='spawn'.*changes nothing.*TorchConfig"):
            strategy = RayDDPStrategy(
                find_unused_parameters=True, process_group_backend="mpi", start_method="spawn"
            )

        module, loader = regression(pl)
        trainer = quiet(
            pl,
            max_epochs=50,
            strategy=strategy,
            plugins=[RayLightningEnvironment()],
            callbacks=[RayTrainReportCallback(CheckpointUploadMode.ASYNC)],
        )
        prepare_trainer(trainer).fit(module, loader)
        raise AssertionError("the run stops at the second report")

    result = fit(function, tmp_path, stop={"training_iteration": 2})

    assert result.metrics is not None
    assert result.metrics["epoch"] == 1
    assert result.checkpoint is not None
    assert list(result.checkpoint.files()) == ["checkpoint.ckpt"]
    state = _lightning_state(result.checkpoint)
    assert state["epoch"] == 1
    assert state["optimizer_states"][0]["state"]
    assert list(Path(result.path).glob(".snapshot-*")) == []


def test_a_plain_trainer_can_report_too(tmp_path: Path) -> None:
    """Rank 0's checkpoint is the run's; without a process group lockstep's strategy raises."""

    def function() -> None:
        import lightning.pytorch as pl

        from lockstep.train.lightning import LockstepDDPStrategy, LockstepReportCallback

        assert issubclass(LockstepReportCallback, pl.Callback)

        class Named(pl.Callback):  # type: ignore[misc]
            def __init__(self, name: str) -> None:
                self.name = name

        class Both(LockstepReportCallback, Named):  # type: ignore[misc]
            pass

        assert Both(name="of the other").name == "of the other"
        assert b"lockstep.train.lightning.on_lightning" in pickle.dumps(LockstepReportCallback)
        module, loader = regression(pl)
        quiet(pl, max_epochs=1, callbacks=[LockstepReportCallback()]).fit(module, loader)
        quiet(pl, max_epochs=1, strategy=LockstepDDPStrategy()).fit(module, loader)

    with pytest.raises(WorkerGroupError, match="workers of this run have no") as raised:
        train.DataParallelTrainer(
            function,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
        ).fit()
    result = raised.value.result
    assert result is not None
    assert result.checkpoint is not None
    assert _lightning_state(result.checkpoint)["global_step"] == 4


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "sharded"])
def test_on_a_gpu(strategy: str, tmp_path: Path) -> None:
    def function() -> None:
        import lightning.pytorch as pl
        import torch.distributed as dist

        from lockstep.train.lightning import (
            LockstepDDPStrategy,
            LockstepFSDPStrategy,
            LockstepReportCallback,
        )

        kinds = {
            "ddp": LockstepDDPStrategy,
            "fsdp": LockstepFSDPStrategy,
            "sharded": lambda: LockstepFSDPStrategy(state_dict_type="sharded"),
        }
        module, loader = regression(pl)
        trainer = prepare_trainer(
            quiet(
                pl,
                max_epochs=2,
                accelerator="gpu",
                strategy=kinds[strategy](),
                callbacks=[LockstepReportCallback()],
            )
        )
        checkpoint = train.get_checkpoint()
        if checkpoint is None:
            trainer.fit(module, loader)
        else:
            with checkpoint.as_directory() as directory:
                trainer.fit_loop.max_epochs = 3
                trainer.fit(module, loader, ckpt_path=os.path.join(directory, "checkpoint.ckpt"))
        train.report(
            {
                "rows": module.rows,
                "device": str(trainer.strategy.root_device),
                "group": dist.get_backend(),
            }
        )

    def run(checkpoint: Checkpoint | None) -> Result:
        return TorchTrainer(
            function,
            scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
            run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
            resume_from_checkpoint=checkpoint,
        ).fit()

    first = run(None)
    assert first.metrics is not None
    assert (first.metrics["rows"], first.metrics["device"]) == (32, "cuda:0")
    assert first.metrics["group"] == "nccl"
    assert first.checkpoint is not None
    with first.checkpoint.as_directory() as directory:
        assert os.path.isdir(os.path.join(directory, "checkpoint.ckpt")) == (strategy == "sharded")
    second = run(first.checkpoint)
    assert second.metrics is not None
    assert second.metrics["rows"] == 16  # the third epoch only


def test_prepare_trainer_needs_a_trainer() -> None:
    with pytest.raises(RuntimeError, match="strategy is NoneType"):
        prepare_trainer(object())


def test_an_unknown_name() -> None:
    assert not hasattr(train.lightning, "DDP")
    assert "LockstepDDPStrategy" in dir(train.lightning)


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="it is installed")
def test_without_deepspeed_its_strategy_says_what_to_install() -> None:
    from lockstep.train.lightning import LockstepDeepSpeedStrategy, RayDeepSpeedStrategy

    assert RayDeepSpeedStrategy is LockstepDeepSpeedStrategy
    with pytest.raises(ImportError, match=r"pip install deepspeed\. It trains on CUDA GPUs only"):
        LockstepDeepSpeedStrategy(stage=2)
