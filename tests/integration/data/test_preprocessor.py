"""A trainer's preprocessor: fitted, applied, and kept with the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lockstep.data
from lockstep import train
from lockstep.data.preprocessors import MinMaxScaler, StandardScaler
from lockstep.train import Checkpoint, RunConfig, ScalingConfig
from lockstep.train.torch import TorchCheckpoint, TorchTrainer


def loop() -> None:
    for name in ("train", "test"):
        rows = [row["x"] for row in train.get_dataset_shard(name).iter_rows()]
        train.report({"x": rows}, checkpoint=Checkpoint.from_dict({"weights": rows}))


def test_a_trainer_fits_it_and_its_checkpoints_have_it(tmp_path: Path) -> None:
    datasets = {
        "train": lockstep.data.from_items([{"x": x} for x in (0, 5, 10)]),
        "test": lambda: lockstep.data.from_items([{"x": 20}]),
    }
    trainer = TorchTrainer(
        loop,
        preprocessor=MinMaxScaler(["x"]),
        datasets=datasets,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=str(tmp_path), name="scaled", verbose=0),
    )
    result = trainer.fit()
    assert result.metrics is not None
    assert result.metrics["x"] == [2.0]
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["weights"] == [2.0]
    kept = Checkpoint(result.checkpoint.path).get_preprocessor()
    assert kept.transform_batch({"x": torch.tensor([5]).numpy()})["x"].tolist() == [0.5]
    again = TorchTrainer.restore(str(tmp_path / "scaled"))
    assert again.preprocessor is not None
    assert again.preprocessor.has_stats()


def test_without_a_dataset_to_fit_it_on(tmp_path: Path) -> None:
    trainer = TorchTrainer(
        loop,
        preprocessor=StandardScaler(["x"]),
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    with pytest.raises(ValueError, match="there is no dataset 'train' to fit it on"):
        trainer.fit()
    with pytest.raises(TypeError, match="preprocessor=3: give one of"):
        TorchTrainer(loop, preprocessor=3)  # type: ignore[arg-type]


def test_checkpoints_of_models() -> None:
    scaler = MinMaxScaler(["x"]).fit(lockstep.data.from_items([{"x": 1}, {"x": 3}]))
    checkpoint = TorchCheckpoint.from_state_dict({"w": torch.ones(1)}, preprocessor=scaler)
    found = checkpoint.get_preprocessor()
    assert found.stats_ == {"min(x)": 1, "max(x)": 3}
    assert Checkpoint.from_dict({"a": 1}).get_preprocessor() is None
