"""prepare_trainer: refuse a Lightning trainer that would not train across the workers."""

from __future__ import annotations

from typing import Any, TypeVar

from lockstep.train.lightning.classes import WorkerStrategy

__all__ = ["prepare_trainer"]

Trainer = TypeVar("Trainer")


def prepare_trainer(trainer: Trainer) -> Trainer:
    """Check that the trainer's strategy is one of lockstep's; return the trainer.

    Raises:
        RuntimeError: another strategy would train each worker separately, or start processes of
            its own.
    """
    strategy: Any = getattr(trainer, "strategy", None)
    if not isinstance(strategy, WorkerStrategy):
        raise RuntimeError(
            f"prepare_trainer: the trainer's strategy is {type(strategy).__name__}, which does not "
            "train across lockstep's workers; pass strategy=LockstepDDPStrategy() or "
            "LockstepFSDPStrategy() to the Trainer."
        )
    return trainer
