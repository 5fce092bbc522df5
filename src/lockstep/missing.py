"""Modules and names of Ray's that do not exist here, and what to use instead.

A missing module is a small file that calls ``raise_missing_module``. A package with missing names
calls ``raise_missing_name`` from its ``__getattr__``. Nothing is installed into Python's import
system.
"""

from __future__ import annotations

import sys
from typing import NoReturn

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
_RESIZED = (
    "a trial keeps the resources it started with; a trainer with "
    "ScalingConfig(num_workers=(min, max)) grows and shrinks"
)
_INSTEAD = {
    "train.BatchPredictor": _PREDICTOR,
    "train.Predictor": _PREDICTOR,
    "train.Trainer": _TRAINER,
    "train.batch_predictor": _PREDICTOR,
    "train.huggingface.AccelerateTrainer": _ACCELERATE,
    "train.huggingface.HuggingFaceCheckpoint": _TRANSFORMERS,
    "train.huggingface.HuggingFacePredictor": _PREDICTOR,
    "train.huggingface.HuggingFaceTrainer": _TRANSFORMERS,
    "train.huggingface.TransformersCheckpoint": _TRANSFORMERS,
    "train.huggingface.TransformersPredictor": _PREDICTOR,
    "train.huggingface.TransformersTrainer": _TRANSFORMERS,
    "train.huggingface.accelerate": _ACCELERATE,
    "train.lightgbm.LightGBMPredictor": _PREDICTOR,
    "train.lightning.LightningCheckpoint": _LIGHTNING,
    "train.lightning.LightningConfigBuilder": _LIGHTNING,
    "train.lightning.LightningPredictor": _PREDICTOR,
    "train.lightning.LightningTrainer": _LIGHTNING,
    "train.mosaic": _COMPOSER,
    "train.predictor": _PREDICTOR,
    "train.rl": _RL,
    "train.sklearn": _SKLEARN,
    "train.tensorflow.TensorflowPredictor": _PREDICTOR,
    "train.torch.TorchPredictor": _PREDICTOR,
    "train.xgboost.XGBoostPredictor": _PREDICTOR,
    "tune.register_env": _RL,
    "tune.schedulers.ResourceChangingScheduler": _RESIZED,
    "tune.schedulers.resource_changing_scheduler": _RESIZED,
    "tune.suggest": "use lockstep.tune.search",
    "tune.utils.log": "use RunConfig(verbose=…)",
}


def raise_missing_module(module: str) -> NoReturn:
    """Raise the ImportError of a module in the table: it names the replacement."""
    advice = _INSTEAD[module.removeprefix("lockstep.")]
    raise ImportError(f"{module} does not exist: {advice}.", name=module)


def raise_missing_name(package: str, name: str, advice: str | None = None) -> NoReturn:
    """Raise what a package's ``__getattr__`` has to raise for a name that it does not have.

    ``from package import name`` raises an ImportError that names the replacement. Any other
    look-up, such as ``hasattr``, gets the usual AttributeError.

    Args:
        package, name: what was asked for.
        advice: what to use instead; None: what the table says, if it has the name.
    """
    full = f"{package}.{name}"
    advice = advice or _INSTEAD.get(full.removeprefix("lockstep."))
    if advice is not None and _is_import_statement():
        raise ImportError(f"{full} does not exist: {advice}.", name=full)
    text = f"module {package!r} has no attribute {name!r}"
    raise AttributeError(text if advice is None else f"{text}: {advice}.", name=name)


def _is_import_statement() -> bool:
    """Whether a module's ``__getattr__`` was called by ``from … import …``.

    The import statement first asks with ``hasattr``, and drops the text of an AttributeError. So
    only an ImportError at that moment reaches the user.
    """
    caller = sys._getframe(3)  # beyond this function, raise_missing_name and __getattr__
    return caller.f_code.co_filename == "<frozen importlib._bootstrap>"
