"""What a training function calls: report, log, and who am I."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.checkpoint import Checkpoint
from lockstep.config import CheckpointUploadMode
from lockstep.run_layout import OWN_NAMES
from lockstep.train.context import PreemptionInfo, TrainContext
from lockstep.train.worker.session import Session, current
from lockstep.train.worker.shards import Shards

if TYPE_CHECKING:
    from lockstep.data import DataShard

__all__ = [
    "ReportedCheckpoint",
    "checkpoint_requested",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_experiment_name",
    "get_local_rank",
    "get_local_world_size",
    "get_metadata",
    "get_node_rank",
    "get_preemption_info",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "get_world_rank",
    "get_world_size",
    "load_checkpoint",
    "local_rank",
    "local_world_size",
    "log",
    "report",
    "save_checkpoint",
    "world_rank",
    "world_size",
]


def _session(caller: str) -> Session:
    session = current()
    if session is None:
        raise RuntimeError(
            f"{caller} works only inside a training function; pass the function that calls it "
            "to a trainer and call fit()."
        )
    return session


def report(
    metrics: Mapping[str, Any] | None = None,
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool = False,
    reduce: str | Mapping[str, str] | None = None,
    **legacy_metrics: Any,
) -> None:
    """Report metrics, and a checkpoint if there is one. A barrier: every rank must call it.

    Args:
        metrics: names to plain values; numpy scalars are converted. Rank 0's are the result's,
            all ranks' are kept.
        checkpoint: this rank's files; those of all ranks are merged into one checkpoint.
        checkpoint_dir_name: the checkpoint's directory, instead of ``checkpoint_000000`` and so on.
        checkpoint_upload_mode: when to return, see :class:`CheckpointUploadMode`.
        delete_local_checkpoint_after_upload: the checkpoint's directory may be taken over: moved
            rather than copied where that is possible, and gone afterwards.
        reduce: combine ranks: ``"mean"``, ``"sum"``, ``"min"``, ``"max"`` or ``"last"`` for every
            number, in nested dicts too, or a dict that names one for each key; ``"a/b"`` reaches
            into nested dicts. Rank 0's counts. A key is combined from the ranks that have it, NaN
            if one of them has NaN; one that no rank has is told once, it may be misspelt.

    Raises:
        ValueError: a metric is a tensor, a reduction is unknown, or none of the keys of ``reduce``
            is among this rank's metrics.
        TypeError: a metric cannot be kept.
        StopTraining: the run ends at this report (not an ``Exception``; do not catch it).
    """
    if metrics is None and legacy_metrics:
        warnings.warn(
            "report(key=value) is the old spelling; use report({'key': value}).",
            DeprecationWarning,
            stacklevel=2,
        )
        metrics = legacy_metrics
    elif legacy_metrics:
        unknown = ", ".join(legacy_metrics)
        raise TypeError(f"report() got unknown arguments besides its metrics: {unknown}.")
    _check_dir_name(checkpoint_dir_name)
    try:
        mode = CheckpointUploadMode(checkpoint_upload_mode)
    except ValueError:
        raise ValueError(
            f"report(checkpoint_upload_mode={checkpoint_upload_mode!r}): expected "
            "CheckpointUploadMode.SYNC, ASYNC or NO_UPLOAD."
        ) from None
    _session("report()").report(
        {} if metrics is None else metrics,
        checkpoint,
        dir_name=checkpoint_dir_name,
        mode=mode,
        take_over=delete_local_checkpoint_after_upload,
        reduce=reduce,
    )


def _check_dir_name(name: str | None) -> None:
    if name is None:
        return
    if not isinstance(name, str) or not name or name[0] == "." or set(name) & {"/", "\\", "\0"}:
        raise ValueError(
            f"report(checkpoint_dir_name={name!r}): expected one directory name, "
            "without slashes and not starting with a dot."
        )
    if name in OWN_NAMES or name.startswith("rank_"):
        raise ValueError(
            f"report(checkpoint_dir_name={name!r}): a run has something of that name itself; "
            "choose another."
        )


def log(metrics: Mapping[str, Any], step: int | None = None) -> None:
    """Keep metrics of this rank without waiting for anyone, e.g. at every step.

    They are in ``result.log_dataframe``, with rank, attempt, step and time.

    Raises:
        ValueError: a metric is a tensor.
        TypeError: a metric cannot be kept, or the step is not a number.
    """
    _session("log()").log(metrics, step if step is None else _plain_step(step))


def _plain_step(step: Any) -> Any:
    if isinstance(step, bool) or not isinstance(step, Real):
        raise TypeError(f"log(step={step!r}): expected a number, or None.")
    return int(step) if isinstance(step, Integral) else float(step)


def get_checkpoint() -> Checkpoint | None:
    """The newest committed checkpoint, or the one to start from; None on a fresh start."""
    session = current()
    return None if session is None else session.checkpoint


def get_dataset_shard(dataset_name: str | None = None) -> DataShard:
    """This worker's part of one of the trainer's ``datasets``; without a name, of the only one.

    A checkpoint that is reported while it is iterated carries its position: after a failure or a
    restore the iteration goes on there, with as many workers as there are then.

    Raises:
        KeyError: the trainer has no such dataset; lists those it has.
        RuntimeError: this is no training function.
    """
    shards = _session("get_dataset_shard()").shards
    return (shards or Shards({}, 0, 1, None)).get(dataset_name)


class ReportedCheckpoint(NamedTuple):
    """A checkpoint and the metrics it was reported with."""

    checkpoint: Checkpoint
    metrics: dict[str, Any]


def get_all_reported_checkpoints() -> list[ReportedCheckpoint]:
    """Every checkpoint committed so far that this rank knows of, oldest first, with its metrics.

    Those that ``CheckpointConfig(num_to_keep=…)`` has deleted since are not on storage any more.
    """
    known = _session("get_all_reported_checkpoints()").reported_checkpoints
    return [ReportedCheckpoint(checkpoint, metrics) for checkpoint, metrics in known]


def get_preemption_info() -> PreemptionInfo | None:
    """Set when this run was told to stop soon (a SIGTERM to the driver or to a worker).

    Every rank sees it after the same ``report()``. Save and report once more: the group stops at
    that report, and the run goes on from there when it is restored or its workers are replaced.
    """
    return _session("get_preemption_info()").preemption


def checkpoint_requested() -> bool:
    """Whether the next report should carry a checkpoint: the run is about to stop or to resize."""
    return _session("checkpoint_requested()").checkpoint_requested


_OUTSIDE = TrainContext()
_warned = False


def get_context() -> TrainContext:
    """Who this worker is. Outside a training function: rank 0 of 1, with one warning."""
    return _asked_by("get_context()")


def _asked_by(caller: str) -> TrainContext:
    global _warned
    session = current()
    if session is not None:
        return session.context
    if not _warned:
        _warned = True
        warnings.warn(
            f"{caller} was called outside a training function, where there is rank 0 of 1, "
            "without a run.",
            stacklevel=3,
        )
    return _OUTSIDE


def get_world_rank() -> int:
    """This worker's rank among all."""
    return _asked_by("get_world_rank()").get_world_rank()


def get_world_size() -> int:
    """How many workers there are."""
    return _asked_by("get_world_size()").get_world_size()


def get_local_rank() -> int:
    """This worker's rank among those on its machine."""
    return _asked_by("get_local_rank()").get_local_rank()


def get_local_world_size() -> int:
    """How many workers there are on this machine."""
    return _asked_by("get_local_world_size()").get_local_world_size()


def get_node_rank() -> int:
    """The rank of this worker's machine."""
    return _asked_by("get_node_rank()").get_node_rank()


def get_trial_id() -> str:
    """The run's id."""
    return _asked_by("get_trial_id()").get_trial_id()


def get_trial_name() -> str:
    """The trainer's name and the run's id."""
    return _asked_by("get_trial_name()").get_trial_name()


def get_trial_dir() -> str:
    """The run's directory."""
    return _asked_by("get_trial_dir()").get_trial_dir()


def get_trial_resources() -> dict[str, float]:
    """What each worker was given."""
    return _asked_by("get_trial_resources()").get_trial_resources()


def get_experiment_name() -> str:
    """The name of the experiment directory."""
    return _asked_by("get_experiment_name()").get_experiment_name()


def get_metadata() -> dict[str, Any]:
    """What the trainer was given as ``metadata``."""
    return _asked_by("get_metadata()").get_metadata()


def _context() -> TrainContext:
    session = current()
    return _OUTSIDE if session is None else session.context


def world_rank() -> int:
    """The old spelling of ``get_context().get_world_rank()``; 0 outside a training function."""
    return _context().world_rank


def world_size() -> int:
    """The old spelling of ``get_context().get_world_size()``; 1 outside a training function."""
    return _context().world_size


def local_rank() -> int:
    """The old spelling of ``get_context().get_local_rank()``; 0 outside a training function."""
    return _context().local_rank


def local_world_size() -> int:
    """The old spelling of ``get_context().get_local_world_size()``; 1 outside."""
    return _context().local_world_size


def save_checkpoint(**data: Any) -> None:
    """The old way to keep a checkpoint: rank 0's keyword arguments, without a report."""
    _session("save_checkpoint()").save_checkpoint(Checkpoint.from_dict(data))


def load_checkpoint() -> dict[str, Any] | None:
    """The old spelling of ``get_checkpoint().to_dict()``; None on a fresh start."""
    checkpoint = get_checkpoint()
    return None if checkpoint is None else checkpoint.to_dict()
