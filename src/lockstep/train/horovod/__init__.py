"""Horovod: the trainer and its config. Training functions call Horovod itself."""

from lockstep.train.horovod.config import HorovodConfig
from lockstep.train.horovod.trainer import HorovodTrainer

__all__ = ["HorovodConfig", "HorovodTrainer"]
