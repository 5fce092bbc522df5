"""An older home of ``DataParallelTrainer``."""

from lockstep.train.trainer import DataParallelTrainer

__all__ = ["DataParallelTrainer"]
