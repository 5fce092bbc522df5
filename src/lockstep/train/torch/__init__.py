"""PyTorch: the trainer, its config, and helpers for the training function."""

from lockstep.train.torch.config import TorchConfig
from lockstep.train.torch.prepare import get_device, prepare_data_loader, prepare_model
from lockstep.train.torch.trainer import TorchTrainer

__all__ = [
    "TorchConfig",
    "TorchTrainer",
    "get_device",
    "prepare_data_loader",
    "prepare_model",
]
