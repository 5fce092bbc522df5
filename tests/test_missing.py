"""Modules and names of Ray's that do not exist here: an import names the replacement."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from lockstep import train, tune


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
        ("lockstep.tune.suggest.optuna", "OptunaSearch", "lockstep.tune.search"),
        ("lockstep.tune.schedulers", "ResourceChangingScheduler", "num_workers"),
        ("lockstep.tune", "register_env", "RLlib"),
        ("lockstep.tune.utils.log", "set_verbosity", "verbose"),
    ],
)
def test_importing_a_missing_name_names_the_replacement(
    module: str, name: str, advice: str
) -> None:
    with pytest.raises(ImportError, match=rf"does not exist: .*{advice}"):
        exec(f"from {module} import {name}")


def test_other_look_ups_are_as_usual() -> None:
    assert not hasattr(train, "Trainer")
    assert not hasattr(tune, "register_env")
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        train.nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'lockstep\.tune\.nothing'"):
        importlib.import_module("lockstep.tune.nothing")


def test_no_import_hook_is_installed() -> None:
    code = "import sys; before = list(sys.meta_path); import lockstep.tune; "
    done = subprocess.run([sys.executable, "-c", code + "assert sys.meta_path == before"])
    assert done.returncode == 0
