"""What a training function calls: report, log, and the worker's own identity."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from lockstep.checkpoint import Checkpoint
from lockstep.checks import is_number
from lockstep.config import CheckpointConsistencyMode, CheckpointUploadMode
from lockstep.errors import SessionMisuseError
from lockstep.run_layout import OWN_NAMES
from lockstep.train.context import PreemptionInfo, TrainContext
from lockstep.train.validation import ValidationTaskConfig
from lockstep.train.worker.session import Session, current
from lockstep.train.worker.shards import Shards
from lockstep.train.worker.snapshot import StateBase

if TYPE_CHECKING:
    from lockstep.data import DataShard

__all__ = [
    "ReportedCheckpoint",
    "ReportedCheckpointStatus",
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
    "session_for",
    "world_rank",
    "world_size",
]


def session_for(caller: str) -> Session:
    """Internal: this worker's session.

    Raises:
        SessionMisuseError: there is none; names the caller.
    """
    session = current()
    if session is None:
        raise SessionMisuseError(
            f"{caller} works only inside a training function; pass the function that calls it "
            "to a trainer and call fit()."
        )
    return session


def report(
    metrics: Mapping[str, Any] | None = None,
    checkpoint: Checkpoint | StateBase | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool = False,
    reduce: str | Mapping[str, str] | None = None,
    checkpoint_upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
    validation: bool | ValidationTaskConfig = False,
    **legacy_metrics: Any,
) -> dict[str, Any] | None:
    """Report metrics and optionally a checkpoint. A barrier: every rank must call it.

    With ``reduce`` the row's metrics are returned, combined from all ranks and the same on every
    rank; else None.

    Args:
        metrics: names to plain values; numpy scalars are converted. The result has rank 0's
            metrics; those of every rank are kept.
        checkpoint: this rank's files; the files of all ranks are merged into one checkpoint. Or a
            ``train.State``: then this returns when the state is copied, and it is written while
            training continues, if ``CheckpointConfig(every=…)`` wants this one.
        checkpoint_dir_name: name of the checkpoint's directory; by default
            ``checkpoint_000000``, ``checkpoint_000001``, ….
        checkpoint_upload_mode: when to return, see :class:`CheckpointUploadMode`.
        delete_local_checkpoint_after_upload: delete the checkpoint's directory after the upload.
            It is moved instead of copied where that is possible. A directory that is, holds or
            lies in the run's storage, a home or a filesystem's root is refused.
        reduce: combine the ranks' values: ``"mean"``, ``"sum"``, ``"min"``, ``"max"`` or ``"last"``
            for every number, also in nested dicts, or a dict that names one for each key;
            ``"a/b"`` names a key of a nested dict. Rank 0's ``reduce`` is used. A key is combined
            from the ranks that have it; the result is NaN if one of them has NaN. A key that no
            rank has may be misspelt: a warning names it once.
        checkpoint_upload_fn: uploads the checkpoint instead of lockstep: called on every rank that
            reports one, with the checkpoint and the name of its directory, before ``report``
            returns. It returns the uploaded ``Checkpoint``, which is recorded where it is.
        validation: True, or a ``ValidationTaskConfig``: the function of the trainer's
            ``validation_config`` is called with this checkpoint beside training, once it is
            committed. ``report`` does not wait for it. Of several ranks, the lowest one's counts.

    Raises:
        ValueError: a metric is a tensor, a reduction is unknown, this rank's metrics have none
            of the keys of ``reduce``, or the checkpoint's directory must not be copied or moved.
        TypeError: a metric cannot be stored.
        StopTraining: the run ends at this report (not an ``Exception``; do not catch it).
    """
    if metrics is None and legacy_metrics:
        warnings.warn(
            "report(key=value) is deprecated; use report({'key': value}).",
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
    session = session_for("report()")
    task = _validation_task(session, validation, checkpoint)
    if isinstance(checkpoint, StateBase):
        if checkpoint_upload_fn is not None or delete_local_checkpoint_after_upload:
            raise ValueError(
                "report(checkpoint=state): a State has no files yet that could be uploaded or "
                "deleted; leave checkpoint_upload_fn and delete_local_checkpoint_after_upload out."
            )
        if mode is CheckpointUploadMode.NO_UPLOAD:
            raise ValueError(
                "report(checkpoint=state): NO_UPLOAD would save nothing; use SYNC or ASYNC."
            )
    elif checkpoint_upload_fn is not None and checkpoint is not None:
        if mode is CheckpointUploadMode.NO_UPLOAD:
            raise ValueError(
                "report(checkpoint_upload_fn=…): NO_UPLOAD uploads nothing; leave one out."
            )
        local = checkpoint
        checkpoint = _upload(session, local, checkpoint_dir_name, checkpoint_upload_fn)
        mode = CheckpointUploadMode.NO_UPLOAD
        checkpoint_dir_name = None
        if delete_local_checkpoint_after_upload and checkpoint != local:
            session.remove_uploaded(local)
    return session.report(
        {} if metrics is None else metrics,
        checkpoint,
        dir_name=checkpoint_dir_name,
        mode=mode,
        take_over=delete_local_checkpoint_after_upload,
        reduce=reduce,
        validation=task,
    )


def _validation_task(
    session: Session, validation: bool | ValidationTaskConfig, checkpoint: object
) -> dict[str, Any] | None:
    """What was requested, as the journal has it; None: nothing."""
    if validation is False or validation is None:
        return None
    if validation is not True and not isinstance(validation, ValidationTaskConfig):
        raise TypeError(
            f"report(validation={validation!r}): expected True, False or a ValidationTaskConfig."
        )
    if checkpoint is None:
        raise ValueError(
            "report(validation=…) needs a checkpoint to validate; a rank without one leaves "
            "validation out."
        )
    if not session.validates:
        raise ValueError(
            "report(validation=…): the trainer has no validation_config; give it "
            "validation_config=ValidationConfig(fn=…)."
        )
    if validation is True:
        return {}
    return {"fn_kwargs": validation.fn_kwargs, "timeout_s": validation.timeout_s}


def _upload(
    session: Session,
    checkpoint: Checkpoint,
    name: str | None,
    upload: Callable[[Checkpoint, str], Checkpoint],
) -> Checkpoint:
    """The checkpoint where the user's function has put it."""
    if name is None:  # by the number of the report, which every rank counts alike
        name = f"checkpoint_attempt_{session.context.attempt}_report_{session.reports + 1:06d}"
    uploaded = upload(checkpoint, name)
    if not isinstance(uploaded, Checkpoint) or uploaded.path is None:
        raise TypeError(
            f"report(checkpoint_upload_fn=…): the function returned {uploaded!r}; return the "
            "uploaded Checkpoint, such as Checkpoint('s3://bucket/path')."
        )
    return uploaded


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
            f"report(checkpoint_dir_name={name!r}): the run uses that name for a file of its own; "
            "choose another name."
        )


def log(metrics: Mapping[str, Any], step: int | None = None) -> None:
    """Record metrics of this rank without waiting for the other ranks, e.g. at every step.

    ``result.log_dataframe`` has them, with rank, attempt, step and time.

    Raises:
        ValueError: a metric is a tensor.
        TypeError: a metric cannot be stored, or the step is not a number.
    """
    session_for("log()").log(metrics, step if step is None else _plain_step(step))


def _plain_step(step: Any) -> Any:
    if isinstance(step, bool) or not isinstance(step, Real):
        raise TypeError(f"log(step={step!r}): expected a number, or None.")
    return int(step) if isinstance(step, Integral) else float(step)


def get_checkpoint() -> Checkpoint | None:
    """Return the newest committed checkpoint, or the one to start from; None on a fresh start."""
    session = current()
    return None if session is None else session.start_checkpoint()


def get_dataset_shard(dataset_name: str | None = None) -> DataShard:
    """Return this worker's shard of one of the trainer's ``datasets``.

    The name may be left out if there is only one dataset. A checkpoint that is reported during the
    iteration contains the position: after a failure or a restore the iteration resumes there, also
    with another number of workers. On a Ray cluster the shard of a Ray Data dataset is Ray's own
    ``DataIterator``, which has no position.

    Raises:
        KeyError: the trainer has no dataset of that name; the message lists the names.
        RuntimeError: called outside a training function.
    """
    shards = session_for("get_dataset_shard()").shards
    shard: DataShard = (shards or Shards({}, 0, 1, None)).get(dataset_name)
    return shard


class ReportedCheckpointStatus(Enum):
    """How far a reported checkpoint is."""

    COMMITTED = "COMMITTED"
    """It is on storage, and no validation was requested."""
    PENDING_VALIDATION = "PENDING_VALIDATION"
    """It is on storage, and its validation has not ended."""
    VALIDATED = "VALIDATED"
    """Its metrics have those of the validation."""
    VALIDATION_TIMEOUT = "VALIDATION_TIMEOUT"
    """The validation took longer than its ``timeout_s``."""
    VALIDATION_FAILED = "VALIDATION_FAILED"
    """The validation function raised, or its process ended."""


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A checkpoint and its metrics, which it can be unpacked into."""

    checkpoint: Checkpoint
    metrics: dict[str, Any]
    status: ReportedCheckpointStatus = ReportedCheckpointStatus.COMMITTED

    def __iter__(self) -> Iterator[Any]:
        """The checkpoint, then its metrics."""
        return iter((self.checkpoint, self.metrics))


def get_all_reported_checkpoints(
    consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED,
    timeout_s: float | None = None,
) -> list[ReportedCheckpoint]:
    """Return every committed checkpoint of the run, oldest first, with its metrics.

    After a report in ``ASYNC`` mode this waits until the checkpoints reported so far are committed,
    and after a report with ``validation`` until they are validated.
    Some may have been deleted from storage since, see ``CheckpointConfig(num_to_keep=…)``.

    Args:
        consistency_mode: what to wait for: the commit, or the validation, too.
        timeout_s: return after this many seconds without those that are still on their way; None:
            wait for all of them.

    Raises:
        ValueError: an argument is none of these.
    """
    try:
        mode = CheckpointConsistencyMode(consistency_mode)
    except ValueError:
        raise ValueError(
            f"get_all_reported_checkpoints(consistency_mode={consistency_mode!r}): expected "
            "CheckpointConsistencyMode.COMMITTED or VALIDATED."
        ) from None
    if timeout_s is not None and not (is_number(timeout_s) and 0 <= timeout_s < math.inf):
        raise ValueError(
            f"get_all_reported_checkpoints(timeout_s={timeout_s!r}): expected seconds, 0 or more, "
            "or None."
        )
    session = session_for("get_all_reported_checkpoints()")
    session.wait_for_commits(timeout_s, validated=mode is CheckpointConsistencyMode.VALIDATED)
    return [
        ReportedCheckpoint(known.checkpoint, known.metrics, ReportedCheckpointStatus(known.status))
        for known in session.reported_checkpoints
    ]


def get_preemption_info() -> PreemptionInfo | None:
    """Return when this run must stop, after a SIGTERM to the driver or a worker; otherwise None.

    Every rank sees it after the same ``report()``. Save and report once more: the workers stop at
    that report, and the run resumes from there when it is restored or its workers are replaced.
    """
    return session_for("get_preemption_info()").preemption


def checkpoint_requested() -> bool:
    """Whether the next report should have a checkpoint: the run is about to stop or to resize."""
    return session_for("checkpoint_requested()").checkpoint_requested


_CONTEXT_OUTSIDE = TrainContext()
_warned_outside = False


def get_context() -> TrainContext:
    """Return who this worker is; outside a training function rank 0 of 1, with a warning."""
    return _context_for("get_context()")


def _context_for(caller: str) -> TrainContext:
    global _warned_outside
    session = current()
    if session is not None:
        return session.context
    if not _warned_outside:
        _warned_outside = True
        warnings.warn(
            f"{caller} was called outside a training function; it returns the values of rank 0 "
            "of 1, without a run.",
            stacklevel=3,
        )
    return _CONTEXT_OUTSIDE


def get_world_rank() -> int:
    """Return this worker's rank among all workers."""
    return _context_for("get_world_rank()").get_world_rank()


def get_world_size() -> int:
    """Return the number of workers."""
    return _context_for("get_world_size()").get_world_size()


def get_local_rank() -> int:
    """Return this worker's rank among the workers of its machine."""
    return _context_for("get_local_rank()").get_local_rank()


def get_local_world_size() -> int:
    """Return the number of workers on this machine."""
    return _context_for("get_local_world_size()").get_local_world_size()


def get_node_rank() -> int:
    """Return the rank of this worker's machine."""
    return _context_for("get_node_rank()").get_node_rank()


def get_trial_id() -> str:
    """Return the run's id."""
    return _context_for("get_trial_id()").get_trial_id()


def get_trial_name() -> str:
    """Return the trainer's name and the run's id."""
    return _context_for("get_trial_name()").get_trial_name()


def get_trial_dir() -> str:
    """Return the run's directory."""
    return _context_for("get_trial_dir()").get_trial_dir()


def get_trial_resources() -> dict[str, float]:
    """Return the resources of each worker."""
    return _context_for("get_trial_resources()").get_trial_resources()


def get_experiment_name() -> str:
    """Return the name of the experiment directory."""
    return _context_for("get_experiment_name()").get_experiment_name()


def get_metadata() -> dict[str, Any]:
    """Return the trainer's ``metadata``."""
    return _context_for("get_metadata()").get_metadata()


def _context() -> TrainContext:
    session = current()
    return _CONTEXT_OUTSIDE if session is None else session.context


def world_rank() -> int:
    """Older name of ``get_context().get_world_rank()``; 0 outside a training function."""
    return _context().world_rank


def world_size() -> int:
    """Older name of ``get_context().get_world_size()``; 1 outside a training function."""
    return _context().world_size


def local_rank() -> int:
    """Older name of ``get_context().get_local_rank()``; 0 outside a training function."""
    return _context().local_rank


def local_world_size() -> int:
    """Older name of ``get_context().get_local_world_size()``; 1 outside."""
    return _context().local_world_size


def save_checkpoint(**data: Any) -> None:
    """The older way to save a checkpoint: rank 0's keyword arguments, without a report."""
    session_for("save_checkpoint()").save_checkpoint(Checkpoint.from_dict(data))


def load_checkpoint() -> dict[str, Any] | None:
    """Older name of ``get_checkpoint().to_dict()``; None on a fresh start."""
    checkpoint = get_checkpoint()
    return None if checkpoint is None else checkpoint.to_dict()
