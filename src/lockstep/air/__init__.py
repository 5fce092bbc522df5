"""Old spellings of what ``lockstep.train`` has: re-exports, nothing else."""

from __future__ import annotations

from lockstep.air import checkpoint, config, result, session
from lockstep.checkpoint import Checkpoint
from lockstep.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from lockstep.data import DatasetConfig
from lockstep.result import Result

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "DatasetConfig",
    "FailureConfig",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "checkpoint",
    "config",
    "result",
    "session",
]
