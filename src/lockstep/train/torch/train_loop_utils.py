"""The helpers for training functions in the module where Ray has them."""

from __future__ import annotations

from lockstep.train.torch.amp import accelerate, backward, prepare_optimizer
from lockstep.train.torch.data_loader import prepare_data_loader
from lockstep.train.torch.model import prepare_model
from lockstep.train.torch.profiler import TorchWorkerProfiler
from lockstep.train.torch.reproducibility import enable_reproducibility
from lockstep.train.worker.torch_device import get_device, get_devices

__all__ = [
    "TorchWorkerProfiler",
    "accelerate",
    "backward",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
    "prepare_optimizer",
]
