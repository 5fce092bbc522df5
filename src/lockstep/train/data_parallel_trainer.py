"""Ray Train's older module of ``DataParallelTrainer``."""

from lockstep.train.trainer import DataParallelTrainer

__all__ = ["DataParallelTrainer"]
