"""Tracking from inside the training function: open the tracker's run on rank 0, and close it."""

from __future__ import annotations

from lockstep.train.tracking.comet import setup_comet
from lockstep.train.tracking.mlflow import setup_mlflow
from lockstep.train.tracking.wandb import setup_wandb

__all__ = ["setup_comet", "setup_mlflow", "setup_wandb"]
