"""Transformers: a callback that reports, and trainers that accept a shard's batches.

The callback's class is created when it is first used, which imports ``transformers``.
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

    Its datasets may be batches of a shard, ``get_dataset_shard(…).iter_torch_batches(…)``, which
    are used unchanged. Such a ``train_dataset`` itself resumes at the reported checkpoint, so a
    resumed trainer skips no batch.

    Raises:
        RuntimeError: the trainer sees another number of processes than the run has workers.
    """
    arguments: Any = getattr(trainer, "args", None)
    seen = getattr(arguments, "world_size", None)
    if seen is None:
        raise TypeError(f"prepare_trainer({trainer!r}): expected a transformers.Trainer.")
    if seen != api.world_size():
        raise RuntimeError(
            f"prepare_trainer: the trainer sees {seen} process(es), but this run has "
            f"{api.world_size()} workers; run the training function with a TorchTrainer and create "
            "the TrainingArguments inside it."
        )
    training, evaluation = (getattr(trainer, f"{kind}_dataset", None) for kind in ("train", "eval"))
    evaluations = evaluation.values() if isinstance(evaluation, dict) else [evaluation]
    if any(map(_are_batches, (training, *evaluations))):
        kind: Any = type(trainer)
        trainer.__class__ = _accepting_batches(kind)
    if _are_batches(training):
        arguments.ignore_data_skip = True
    return trainer


def _are_batches(dataset: object) -> bool:
    from lockstep.data.iterate.iterator import Rows

    return isinstance(dataset, Rows)


@cache
def _accepting_batches(base: Any) -> Any:
    """Return a subclass of the trainer's class with loaders for the batches of a shard."""
    from torch.utils.data import DataLoader, IterableDataset

    class Batches(IterableDataset[Any]):
        """A shard's batches for a DataLoader."""

        def __init__(self, batches: Any) -> None:
            self.batches = batches

        def __iter__(self) -> Any:
            return iter(self.batches)

    class AcceptingBatches(base):  # type: ignore[misc]  # a base known at run time
        """A trainer whose datasets may be batches of a shard."""

        def get_train_dataloader(self) -> Any:
            """The shard's batches, or the loader of the base class."""
            if _are_batches(self.train_dataset):
                return DataLoader(Batches(self.train_dataset), batch_size=None)
            return super().get_train_dataloader()

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            """The shard's batches, or the loader of the base class."""
            chosen = self.eval_dataset if eval_dataset is None else eval_dataset
            if isinstance(chosen, str):
                chosen = self.eval_dataset[chosen]
            if _are_batches(chosen):
                return DataLoader(Batches(chosen), batch_size=None)
            return super().get_eval_dataloader(eval_dataset)

    AcceptingBatches.__name__ = AcceptingBatches.__qualname__ = base.__name__
    return AcceptingBatches


class _Reporter:
    """The part of the report callback that does not need ``transformers``."""

    CHECKPOINT_NAME = "checkpoint"

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Keep the logs for the next report."""
        self.metrics.update(logs or {})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the metrics logged since the last save, with the checkpoint just saved."""
        metrics, self.metrics = self.metrics, {}
        metrics.setdefault("step", state.global_step)
        metrics.setdefault("epoch", state.epoch)
        saved = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        _wait_for_all()
        if api.local_rank() != 0 or not os.path.isdir(saved):
            api.report(metrics)
            return
        # Hard links if possible: the checkpoint has the same files in a directory of another name.
        with tempfile.TemporaryDirectory(prefix=".report-", dir=args.output_dir) as directory:
            target = os.path.join(directory, self.CHECKPOINT_NAME)
            shutil.copytree(saved, target, copy_function=_link_or_copy)
            api.report(metrics, checkpoint=Checkpoint.from_directory(directory))


def _wait_for_all() -> None:
    """Wait until every rank has written its files (random state, shard) into the directory."""
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
            "pip install 'lockstep-train[transformers]'"
        ) from error

    class LockstepReportCallback(_Reporter, TrainerCallback):  # type: ignore[misc]  # an untyped base
        """Reports at every save of the trainer.

        The metrics are those logged since the last save. The checkpoint is a directory whose
        ``checkpoint/`` is the trainer's own checkpoint.
        """

    LockstepReportCallback.__module__ = __name__
    LockstepReportCallback.__qualname__ = LockstepReportCallback.__name__
    return LockstepReportCallback
