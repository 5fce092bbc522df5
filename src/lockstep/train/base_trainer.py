"""Ray Train's older module of ``BaseTrainer`` and of the error that ``fit`` raises."""

from lockstep.errors import TrainingFailedError
from lockstep.train.trainer import BaseTrainer

__all__ = ["BaseTrainer", "TrainingFailedError"]
