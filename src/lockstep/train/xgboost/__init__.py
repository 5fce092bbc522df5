"""XGBoost: the trainer, its config, its checkpoint, and the callback that reports."""

from __future__ import annotations

from typing import Any

from lockstep.missing import raise_missing_name
from lockstep.train.xgboost.callback import RayTrainReportCallback
from lockstep.train.xgboost.checkpoint import XGBoostCheckpoint
from lockstep.train.xgboost.config import XGBoostConfig
from lockstep.train.xgboost.trainer import XGBoostTrainer

__all__ = [
    "RayTrainReportCallback",
    "XGBoostCheckpoint",
    "XGBoostConfig",
    "XGBoostTrainer",
]


def __getattr__(name: str) -> Any:
    raise_missing_name(__name__, name)
