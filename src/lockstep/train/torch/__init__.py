"""PyTorch: the trainer, its config, and helpers for the training function."""

from __future__ import annotations

from typing import Any

from lockstep.missing import raise_missing_name
from lockstep.train.torch.amp import (
    accelerate,
    backward,
    get_grad_scaler,
    prepare_optimizer,
    unscale,
)
from lockstep.train.torch.checkpoint import TorchCheckpoint
from lockstep.train.torch.config import TorchConfig
from lockstep.train.torch.data_loader import prepare_data_loader
from lockstep.train.torch.model import prepare_model, unwrap_model
from lockstep.train.torch.profiler import TorchTensorboardProfilerCallback, TorchWorkerProfiler
from lockstep.train.torch.reproducibility import enable_reproducibility
from lockstep.train.torch.trainer import TorchTrainer
from lockstep.train.worker.torch_device import get_device, get_devices

__all__ = [
    "TorchCheckpoint",
    "TorchConfig",
    "TorchTensorboardProfilerCallback",
    "TorchTrainer",
    "TorchWorkerProfiler",
    "accelerate",
    "backward",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "get_grad_scaler",
    "prepare_data_loader",
    "prepare_model",
    "prepare_optimizer",
    "unscale",
    "unwrap_model",
]


def __getattr__(name: str) -> Any:
    raise_missing_name(__name__, name)
