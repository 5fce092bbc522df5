"""Distributed training: trainers, their configs, and what a training function calls."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lockstep.callback import UserCallback
from lockstep.checkpoint import Checkpoint
from lockstep.config import (
    CheckpointConfig,
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    FailureConfig,
    Guard,
    LoggingConfig,
    RunConfig,
    ScalingConfig,
    SyncConfig,
)
from lockstep.errors import (
    ControllerError,
    NCCLHangError,
    PreemptionError,
    TrainingFailedError,
    WorkerGroupError,
)
from lockstep.missing import raise_missing_name
from lockstep.result import Result
from lockstep.train.api import (
    ReportedCheckpoint,
    ReportedCheckpointStatus,
    checkpoint_requested,
    get_all_reported_checkpoints,
    get_checkpoint,
    get_context,
    get_dataset_shard,
    get_preemption_info,
    load_checkpoint,
    local_rank,
    local_world_size,
    log,
    report,
    save_checkpoint,
    world_rank,
    world_size,
)
from lockstep.train.backend import Backend, BackendConfig
from lockstep.train.constants import TRAIN_DATASET_KEY
from lockstep.train.context import PreemptionInfo, TrainContext
from lockstep.train.driver.early_stopping import EarlyStopping
from lockstep.train.state import State
from lockstep.train.trainer import BaseTrainer, DataParallelTrainer
from lockstep.train.validation import ValidationConfig, ValidationFn, ValidationTaskConfig

if TYPE_CHECKING:
    from lockstep.data import DataConfig, DatasetConfig

__all__ = [
    "TRAIN_DATASET_KEY",
    "Backend",
    "BackendConfig",
    "BaseTrainer",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointUploadMode",
    "ControllerError",
    "DataConfig",
    "DataParallelTrainer",
    "DatasetConfig",
    "EarlyStopping",
    "FailureConfig",
    "Guard",
    "LoggingConfig",
    "NCCLHangError",
    "PreemptionError",
    "PreemptionInfo",
    "ReportedCheckpoint",
    "ReportedCheckpointStatus",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "State",
    "SyncConfig",
    "TrainContext",
    "TrainingFailedError",
    "UserCallback",
    "ValidationConfig",
    "ValidationFn",
    "ValidationTaskConfig",
    "WorkerGroupError",
    "checkpoint_requested",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "load_checkpoint",
    "local_rank",
    "local_world_size",
    "log",
    "report",
    "save_checkpoint",
    "world_rank",
    "world_size",
]

_MODULES = (
    "base_trainer",
    "collective",
    "constants",
    "error",
    "data_parallel_trainer",
    "horovod",
    "huggingface",
    "jax",
    "lightgbm",
    "lightning",
    "tensorflow",
    "torch",
    "v2",
    "xgboost",
)
_OF_DATA = ("DataConfig", "DatasetConfig")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"lockstep.train.{name}")
    if name in _OF_DATA:
        return getattr(importlib.import_module("lockstep.data"), name)
    raise_missing_name(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_OF_DATA})
