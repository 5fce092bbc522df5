"""The same names in the module where Ray has them."""

from __future__ import annotations

from lockstep.config import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig

__all__ = ["CheckpointConfig", "FailureConfig", "LoggingConfig", "RunConfig", "ScalingConfig"]
