"""``TensorflowTrainer`` in the module where Ray has it."""

from __future__ import annotations

from lockstep.train.tensorflow.trainer import TensorflowTrainer

__all__ = ["TensorflowTrainer"]
