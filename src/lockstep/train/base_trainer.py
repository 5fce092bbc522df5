"""An older home of ``BaseTrainer``."""

from lockstep.train.trainer import BaseTrainer

__all__ = ["BaseTrainer"]
