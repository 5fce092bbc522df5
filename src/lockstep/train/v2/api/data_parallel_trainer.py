"""The same names in the module where Ray has them."""

from __future__ import annotations

from lockstep.train.trainer import DataParallelTrainer

__all__ = ["DataParallelTrainer"]
