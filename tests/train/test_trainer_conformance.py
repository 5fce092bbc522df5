"""Torch passes the suite that every trainer passes."""

from __future__ import annotations

import pytest

from lockstep.testing import TrainerConformance
from lockstep.train.torch import TorchConfig, TorchTrainer


class TestTorchTrainer(TrainerConformance):
    trainer_class = TorchTrainer

    @staticmethod
    def total(value: float) -> float:
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(value)
        dist.all_reduce(tensor)
        return tensor.item()


def test_the_config_has_two_names() -> None:
    config = TorchConfig(backend="gloo")
    assert TorchTrainer(print, torch_config=config).backend_config is config
    assert TorchTrainer(print, torch_backend=config).backend_config is config
    with pytest.raises(
        ValueError, match="torch_config and torch_backend are names of one argument"
    ):
        TorchTrainer(print, torch_config=config, torch_backend=config)
    with pytest.raises(TypeError, match="torch_backend='gloo': expected a TorchConfig"):
        TorchTrainer(print, torch_backend="gloo")  # type: ignore[arg-type]
