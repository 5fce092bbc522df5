"""The configs under their old spelling."""

from __future__ import annotations

from lockstep.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from lockstep.data import DatasetConfig

__all__ = ["CheckpointConfig", "DatasetConfig", "FailureConfig", "RunConfig", "ScalingConfig"]
