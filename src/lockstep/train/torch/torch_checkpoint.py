"""``TorchCheckpoint`` in the module where Ray has it."""

from __future__ import annotations

from lockstep.train.torch.checkpoint import TorchCheckpoint

__all__ = ["TorchCheckpoint"]
