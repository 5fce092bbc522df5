"""Horovod passes the suite that every trainer passes."""

from __future__ import annotations

import pytest

from lockstep.testing import TrainerConformance
from lockstep.train.horovod import HorovodTrainer

pytestmark = pytest.mark.environment("horovod")


class TestHorovodTrainer(TrainerConformance):
    trainer_class = HorovodTrainer

    @staticmethod
    def total(value: float) -> float:
        import horovod.torch as hvd
        import torch

        hvd.init()
        return float(hvd.allreduce(torch.tensor(value), op=hvd.Sum).item())
