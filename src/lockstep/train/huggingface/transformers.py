"""Transformers: a callback that reports, and a check of the trainer.

The callback's class is made when it is first asked for, which imports ``transformers``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cache
from typing import Any, TypeVar

from lockstep.checkpoint import Checkpoint
from lockstep.train import api

__all__ = ["LockstepReportCallback", "RayTrainReportCallback", "prepare_trainer"]

LockstepReportCallback: Any
RayTrainReportCallback: Any

Trainer = TypeVar("Trainer")


def prepare_trainer(trainer: Trainer) -> Trainer:
    """Check that the trainer trains across the run's workers; return the trainer.

    Raises:
        RuntimeError: it sees another number of processes than the run has.
    """
    arguments: Any = getattr(trainer, "args", None)
    seen = getattr(arguments, "world_size", None)
    if seen is None:
        raise TypeError(f"prepare_trainer({trainer!r}): expected a transformers.Trainer.")
    if seen != api.world_size():
        raise RuntimeError(
            f"prepare_trainer: the trainer sees {seen} process(es), but this run has "
            f"{api.world_size()} workers; run the training function with a TorchTrainer and make "
            "the TrainingArguments inside it."
        )
    return trainer


class _Reporter:
    """The part of the report callback that does not need ``transformers``."""

    CHECKPOINT_NAME = "checkpoint"

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Keep what is logged for the next report."""
        self.metrics.update(logs or {})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report what was logged since the last save, with the checkpoint just saved."""
        metrics, self.metrics = self.metrics, {}
        metrics.setdefault("step", state.global_step)
        metrics.setdefault("epoch", state.epoch)
        saved = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        _wait_for_all()
        if api.local_rank() != 0 or not os.path.isdir(saved):
            api.report(metrics)
            return
        # Links, beside the files where they are possible: only the name of the directory changes.
        with tempfile.TemporaryDirectory(prefix=".report-", dir=args.output_dir) as directory:
            target = os.path.join(directory, self.CHECKPOINT_NAME)
            shutil.copytree(saved, target, copy_function=_link_or_copy)
            api.report(metrics, checkpoint=Checkpoint.from_directory(directory))


def _wait_for_all() -> None:
    """Every rank writes some files of its own (its random state, its shard) into one directory."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a filesystem without links
        shutil.copy2(source, target)


def __getattr__(name: str) -> Any:
    if name in ("LockstepReportCallback", "RayTrainReportCallback"):
        return _callback_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


@cache
def _callback_class() -> type:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError(
            "LockstepReportCallback needs Transformers; install it: "
            "pip install 'lockstep[transformers]'"
        ) from error

    class LockstepReportCallback(_Reporter, TrainerCallback):  # type: ignore[misc]
        """Reports at every save of the trainer.

        The metrics are all that was logged since the last save; the checkpoint is a directory with
        the trainer's own in ``checkpoint/``.
        """

    LockstepReportCallback.__module__ = __name__
    LockstepReportCallback.__qualname__ = LockstepReportCallback.__name__
    return LockstepReportCallback
