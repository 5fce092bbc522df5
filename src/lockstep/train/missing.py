"""Modules and names that Ray has removed from Ray Train, and today's way to do the same."""

from __future__ import annotations

from typing import NoReturn

from lockstep import missing

__all__ = ["raise_missing_module", "raise_missing_name"]

_PREDICTOR = (
    "Ray has removed predictors; predict with dataset.map_batches(Predict, concurrency=2), where "
    "the class Predict loads result.checkpoint in __init__ and predicts a batch in __call__"
)
_LIGHTNING = (
    "Ray has removed it; use lockstep.train.torch.TorchTrainer, whose function creates a Lightning "
    "Trainer with RayDDPStrategy, RayLightningEnvironment and RayTrainReportCallback of "
    "lockstep.train.lightning, and calls prepare_trainer"
)
_TRANSFORMERS = (
    "Ray has removed it; use lockstep.train.torch.TorchTrainer, whose function creates a "
    "transformers.Trainer and calls lockstep.train.huggingface.transformers.prepare_trainer, with "
    "its RayTrainReportCallback"
)
_ACCELERATE = (
    "Ray has removed it; use lockstep.train.torch.TorchTrainer, whose function creates an "
    "accelerate.Accelerator()"
)
_SKLEARN = (
    "Ray has removed it; fit the estimator in the training function of a "
    "lockstep.train.DataParallelTrainer, or in a tune.Tuner's function"
)
_TRAINER = (
    "Ray has removed it; use lockstep.train.torch.TorchTrainer, "
    "lockstep.train.tensorflow.TensorflowTrainer or lockstep.train.horovod.HorovodTrainer"
)
_COMPOSER = "Ray has removed it; use lockstep.train.torch.TorchTrainer with Composer's own Trainer"
_RL = "it belongs to RLlib, which is not part of lockstep"
_INSTEAD = {
    "BatchPredictor": _PREDICTOR,
    "Predictor": _PREDICTOR,
    "Trainer": _TRAINER,
    "batch_predictor": _PREDICTOR,
    "huggingface.AccelerateTrainer": _ACCELERATE,
    "huggingface.HuggingFaceCheckpoint": _TRANSFORMERS,
    "huggingface.HuggingFacePredictor": _PREDICTOR,
    "huggingface.HuggingFaceTrainer": _TRANSFORMERS,
    "huggingface.TransformersCheckpoint": _TRANSFORMERS,
    "huggingface.TransformersPredictor": _PREDICTOR,
    "huggingface.TransformersTrainer": _TRANSFORMERS,
    "huggingface.accelerate": _ACCELERATE,
    "huggingface.transformers.TransformersTrainer": _TRANSFORMERS,
    "lightgbm.LightGBMPredictor": _PREDICTOR,
    "lightning.LightningCheckpoint": _LIGHTNING,
    "lightning.LightningConfigBuilder": _LIGHTNING,
    "lightning.LightningPredictor": _PREDICTOR,
    "lightning.LightningTrainer": _LIGHTNING,
    "mosaic": _COMPOSER,
    "predictor": _PREDICTOR,
    "rl": _RL,
    "sklearn": _SKLEARN,
    "tensorflow.TensorflowPredictor": _PREDICTOR,
    "torch.TorchPredictor": _PREDICTOR,
    "xgboost.XGBoostPredictor": _PREDICTOR,
}


def raise_missing_module(module: str) -> NoReturn:
    """Raise the ImportError of a module in the table: it names today's way."""
    missing.raise_missing_module(module, _advice(module) or "it has no counterpart")


def raise_missing_name(package: str, name: str) -> NoReturn:
    """Raise what a package's ``__getattr__`` has to raise for a name that it does not have."""
    missing.raise_missing_name(package, name, _advice(f"{package}.{name}"), depth=1)


def _advice(full_name: str) -> str | None:
    return _INSTEAD.get(full_name.removeprefix("lockstep.train."))
