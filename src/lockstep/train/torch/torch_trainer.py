"""``TorchTrainer`` in the module where Ray has it."""

from __future__ import annotations

from lockstep.train.torch.trainer import TorchTrainer

__all__ = ["TorchTrainer"]
