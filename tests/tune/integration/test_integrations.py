"""Callbacks of other libraries that report what they train: the real libraries, in real trials."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from lockstep import tune
from lockstep.train import RunConfig
from lockstep.train.boosting.reports import BoosterReporter, MetricsChoice
from lockstep.tune import ResultGrid


def fit(trainable: Any, tmp_path: Path, stop: Any = None, **space: Any) -> ResultGrid:
    run_config = RunConfig(storage_path=tmp_path, verbose=0, stop=stop)
    return tune.Tuner(trainable, param_space=space, run_config=run_config).fit()


def test_names_of_metrics() -> None:
    found = {"a": 1, "b": 2}
    assert MetricsChoice("Callback", None).of(found) == found
    assert MetricsChoice("Callback", "a").of(found) == {"a": 1}
    assert MetricsChoice("Callback", ["a", "b"]).of(found) == found
    choice = MetricsChoice("Callback", {"x": "b", "y": "c"})
    with pytest.warns(UserWarning, match=r"Callback\(metrics=…\): there is no 'c' yet, only \['a'"):
        assert choice.of(found) == {"x": 2}
    assert choice.of(found) == {"x": 2}  # said once
    wrong: Any = [1]
    with pytest.raises(TypeError, match=r"Callback\(metrics=\[1\]\): expected names"):
        MetricsChoice("Callback", wrong)
    with pytest.raises(ValueError, match=r"BoosterReporter\(frequency=-1\) is too small"):
        BoosterReporter(frequency=-1)


# ------------------------------------------------------------------------------------ Lightning


def lightning_trial(config: dict[str, Any]) -> None:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader

    from lockstep.tune.integration import pytorch_lightning

    class Line(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = (self.layer(batch) - batch).square().mean()
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", (self.layer(batch) - batch).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=config["lr"])

    torch.manual_seed(1)
    data: Any = DataLoader(torch.rand(8, 1), batch_size=4)  # type: ignore[arg-type]
    callback = getattr(pytorch_lightning, config["name"])
    Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback({"loss": "val_loss"}, **config["options"])],
    ).fit(Line(), data, data)


@pytest.mark.timeout(120)  # importing Lightning takes most of it
def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    import torch

    cases = [
        {"name": "TuneReportCheckpointCallback", "options": {"filename": "my.ckpt"}},
        {"name": "TuneReportCallback", "options": {"on": "train_epoch_end"}},
    ]
    space = {"lr": 0.1, "case": tune.grid_search(cases)}

    def trial(config: dict[str, Any]) -> None:
        lightning_trial({"lr": config["lr"], **config["case"]})

    first, second = fit(trial, tmp_path, **space)
    for result in (first, second):
        assert result.error is None
        assert len(result.metrics_dataframe) == 3  # the sanity check is no report
        losses = list(result.metrics_dataframe["loss"])
        assert losses[-1] < losses[0]
    assert first.checkpoint is not None
    with first.checkpoint.as_directory() as directory:
        assert torch.load(Path(directory, "my.ckpt"), weights_only=False)["epoch"] == 2
    assert second.checkpoint is None


@pytest.mark.timeout(120)
def test_lightning_s_hooks() -> None:
    pytest.importorskip("lightning")
    from lockstep.tune.integration.pytorch_lightning import TuneReportCheckpointCallback

    with pytest.raises(ValueError, match=r"on='later'\): Lightning has no hook on_later"):
        TuneReportCheckpointCallback(on="later")


# ------------------------------------------------------------------------------- boosted trees


def table() -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(1)
    features = random.random((200, 3))
    return features, (features[:, 0] > 0.5).astype(int)


def xgboost_trial(config: dict[str, Any]) -> None:
    xgboost = importlib.import_module("xgboost")
    integration = importlib.import_module("lockstep.tune.integration.xgboost")
    data = xgboost.DMatrix(*table())
    xgboost.train(
        {"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "nthread": 1},
        data,
        num_boost_round=5,
        evals=[(data, "train")],
        verbose_eval=False,
        callbacks=[getattr(integration, config["name"])(**config["options"])],
    )


def lightgbm_trial(config: dict[str, Any]) -> None:
    lightgbm = importlib.import_module("lightgbm")
    integration = importlib.import_module("lockstep.tune.integration.lightgbm")
    data = lightgbm.Dataset(*table())
    lightgbm.train(
        {
            "objective": "binary",
            "metric": ["binary_logloss", "binary_error"],
            "num_threads": 1,
            "verbose": -1,
        },
        data,
        num_boost_round=5,
        valid_sets=[data],
        valid_names=["train"],
        callbacks=[getattr(integration, config["name"])(**config["options"])],
    )


BOOSTERS = {
    "xgboost": (xgboost_trial, "train-logloss"),
    "lightgbm": (lightgbm_trial, "train-binary_logloss"),
}


@pytest.mark.parametrize("library", list(BOOSTERS))
def test_boosted_trees(library: str, tmp_path: Path) -> None:
    package = pytest.importorskip(library)
    integration = importlib.import_module(f"lockstep.tune.integration.{library}")
    train_model, loss = BOOSTERS[library]

    def trial(config: dict[str, Any]) -> None:
        train_model(config["case"])

    saving = "TuneReportCheckpointCallback"
    cases = [
        {"name": saving, "options": {}},
        {
            "name": saving,
            "options": {"metrics": {"loss": loss}, "frequency": 2, "filename": "m.json"},
        },
        {"name": "TuneReportCallback", "options": {"metrics": loss}},
    ]
    grid = fit(trial, tmp_path, case=tune.grid_search(cases))
    assert not grid.num_errors, grid.errors
    first, second, third = grid
    for result, key in ((first, loss), (second, "loss"), (third, loss)):
        values = list(result.metrics_dataframe[key])
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
    features, labels = table()
    data = package.DMatrix(features) if library == "xgboost" else features
    for result, file in ((first, None), (second, "m.json")):
        assert result.checkpoint is not None
        model = integration.TuneReportCheckpointCallback.get_model(result.checkpoint, file)
        assert ((model.predict(data) > 0.5) == labels).mean() > 0.9
    assert len(first.best_checkpoints) == 1
    assert [metrics["training_iteration"] for _, metrics in second.best_checkpoints] == [2, 4, 5]
    assert third.checkpoint is None
    kept = cloudpickle.dumps(integration.TuneReportCheckpointCallback(metrics=loss, frequency=3))
    assert cloudpickle.loads(kept)._frequency == 3
    (stopped,) = fit(trial, tmp_path, {"training_iteration": 2}, case=cases[1])
    assert stopped.metrics["training_iteration"] == 2
    assert stopped.checkpoint is not None


def test_cross_validation(tmp_path: Path) -> None:
    """Its models are several: their mean metrics are reported, and none of them is saved."""
    xgboost = pytest.importorskip("xgboost")
    integration = importlib.import_module("lockstep.tune.integration.xgboost")

    def trial(config: dict[str, Any]) -> None:
        parameters = {"objective": "binary:logistic", "eval_metric": "logloss", "nthread": 1}
        callback = integration.TuneReportCheckpointCallback(frequency=2)
        xgboost.cv(
            parameters, xgboost.DMatrix(*table()), num_boost_round=3, nfold=2, callbacks=[callback]
        )

    (result,) = fit(trial, tmp_path)
    assert len(result.metrics_dataframe["test-logloss"]) == 3
    assert result.checkpoint is None


def test_without_xgboost(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.train.xgboost import callback
    from lockstep.tune.integration import xgboost as integration

    callback._on_xgboost.cache_clear()
    monkeypatch.setitem(sys.modules, "xgboost.callback", None)
    with pytest.raises(ImportError, match="TuneReportCallback needs XGBoost; install it: pip inst"):
        integration.TuneReportCallback()
