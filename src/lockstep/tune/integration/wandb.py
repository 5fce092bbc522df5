"""Weights & Biases under the name of its older Tune module."""

from __future__ import annotations

from lockstep.trackers.wandb import WandbLoggerCallback
from lockstep.train.tracking.wandb import setup_wandb, wandb_mixin

__all__ = ["WandbLoggerCallback", "setup_wandb", "wandb_mixin"]
