"""LightGBM: the trainer, its config, its checkpoint, and the callback that reports."""

from __future__ import annotations

from typing import Any

from lockstep.missing import raise_missing_name
from lockstep.train.lightgbm.callback import RayTrainReportCallback
from lockstep.train.lightgbm.checkpoint import LightGBMCheckpoint
from lockstep.train.lightgbm.config import LightGBMConfig, get_network_params
from lockstep.train.lightgbm.frames import normalize_pandas_for_lightgbm
from lockstep.train.lightgbm.trainer import LightGBMTrainer

__all__ = [
    "LightGBMCheckpoint",
    "LightGBMConfig",
    "LightGBMTrainer",
    "RayTrainReportCallback",
    "get_network_params",
    "normalize_pandas_for_lightgbm",
]


def __getattr__(name: str) -> Any:
    raise_missing_name(__name__, name)
