"""Weights & Biases under the name of its Tune module."""

from __future__ import annotations

from lockstep.trackers.wandb import WandbLoggerCallback

__all__ = ["WandbLoggerCallback"]
