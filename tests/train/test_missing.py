"""Modules and names that Ray has removed from Ray Train: an import names today's way."""

from __future__ import annotations

import pytest

from lockstep import train


@pytest.mark.parametrize(
    ("module", "name", "advice"),
    [
        ("lockstep.train", "Trainer", "TorchTrainer"),
        ("lockstep.train", "Predictor", "map_batches"),
        ("lockstep.train.predictor", "Predictor", "map_batches"),
        ("lockstep.train.batch_predictor", "BatchPredictor", "map_batches"),
        ("lockstep.train.torch", "TorchPredictor", "map_batches"),
        ("lockstep.train.lightning", "LightningTrainer", "prepare_trainer"),
        ("lockstep.train.lightning", "LightningConfigBuilder", "RayDDPStrategy"),
        ("lockstep.train.huggingface", "HuggingFaceTrainer", "transformers.prepare_trainer"),
        ("lockstep.train.huggingface", "TransformersTrainer", "transformers.prepare_trainer"),
        ("lockstep.train.huggingface", "AccelerateTrainer", "accelerate.Accelerator"),
        ("lockstep.train.huggingface.accelerate", "AccelerateTrainer", "accelerate.Accelerator"),
        ("lockstep.train.sklearn", "SklearnTrainer", "DataParallelTrainer"),
        ("lockstep.train.mosaic", "MosaicTrainer", "TorchTrainer"),
        ("lockstep.train.rl", "RLTrainer", "RLlib"),
    ],
)
def test_importing_a_removed_name_names_todays_way(module: str, name: str, advice: str) -> None:
    with pytest.raises(ImportError, match=rf"does not exist: .*{advice}"):
        exec(f"from {module} import {name}")


def test_other_look_ups_are_as_usual() -> None:
    assert not hasattr(train, "Trainer")
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        train.nothing  # noqa: B018
