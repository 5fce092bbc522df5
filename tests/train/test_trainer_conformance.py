"""Torch passes the suite that every trainer passes."""

from __future__ import annotations

from lockstep.testing import TrainerConformance
from lockstep.train.torch import TorchTrainer


class TestTorchTrainer(TrainerConformance):
    trainer_class = TorchTrainer

    @staticmethod
    def total(value: float) -> float:
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(value)
        dist.all_reduce(tensor)
        return tensor.item()
