"""Horovod passes the suite that every trainer passes."""

from __future__ import annotations

import pytest

from lockstep.testing import TrainerConformance
from lockstep.train.horovod import HorovodTrainer

# The first worker of a session waits until torch and Horovod are imported, which takes a while on a
# busy machine.
pytestmark = [pytest.mark.environment("horovod"), pytest.mark.timeout(180)]


class TestHorovodTrainer(TrainerConformance):
    trainer_class = HorovodTrainer

    @staticmethod
    def total(value: float) -> float:
        import horovod.torch as hvd
        import torch

        hvd.init()
        return float(hvd.allreduce(torch.tensor(value), op=hvd.Sum).item())
