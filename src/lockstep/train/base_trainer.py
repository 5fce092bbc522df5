"""An older home of ``BaseTrainer``, and of the error that its ``fit`` raises."""

from lockstep.errors import TrainingFailedError
from lockstep.train.trainer import BaseTrainer

__all__ = ["BaseTrainer", "TrainingFailedError"]
