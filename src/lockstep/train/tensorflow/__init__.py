"""TensorFlow: the trainer, its config, and helpers for the training function."""

from __future__ import annotations

from typing import Any

from lockstep.missing import raise_missing_name
from lockstep.train.tensorflow.checkpoint import TensorflowCheckpoint
from lockstep.train.tensorflow.config import TensorflowConfig
from lockstep.train.tensorflow.dataset import prepare_dataset_shard
from lockstep.train.tensorflow.trainer import TensorflowTrainer

__all__ = ["TensorflowCheckpoint", "TensorflowConfig", "TensorflowTrainer", "prepare_dataset_shard"]


def __getattr__(name: str) -> Any:
    raise_missing_name(__name__, name)
