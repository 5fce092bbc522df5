"""verify_resume: proves that a training function survives a failure, or says where it does not."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from lockstep.checks import is_number
from lockstep.config import FailureConfig, RunConfig
from lockstep.errors import TrainingFailedError
from lockstep.result import Result
from lockstep.testing.compare import Comparison
from lockstep.testing.diagnosis import (
    REPORTS,
    Difference,
    History,
    explain,
    explain_failure,
    explain_no_checkpoint,
    find_differences,
)
from lockstep.testing.faults import FaultPlan, InjectedError
from lockstep.train.trainer import DataParallelTrainer

__all__ = ["Difference", "ResumeReport", "verify_resume"]

Fault = Literal["kill", "exit", "raise"]


@dataclass(frozen=True, eq=False)
class ResumeReport:
    """What came of ``verify_resume``. True when the failure left no trace.

    ``str()`` is one sentence: the first metric and step where the runs part, and the likely cause.

    Attributes:
        differences: everything that a failure changed, rows first, in their order.
        undisturbed, disturbed: the two Results. Where the trainer names no ``storage_path``, their
            files go when this report does.
        fault_plan: what was injected.
        explanation: the sentence.
    """

    differences: tuple[Difference, ...]
    undisturbed: Result
    disturbed: Result
    fault_plan: FaultPlan
    explanation: str

    @property
    def ok(self) -> bool:
        """There is no difference."""
        return not self.differences

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.explanation

    def __repr__(self) -> str:
        return f"ResumeReport(ok={self.ok}, {self.explanation!r})"


def verify_resume(
    trainer: DataParallelTrainer,
    *,
    at_report: int | None = None,
    rank: int | None = None,
    fault: Fault = "kill",
    tolerance: float = 1e-6,
    ignore: Collection[str] = (),
) -> ResumeReport:
    """Fit the trainer undisturbed, then once more with an injected failure, and compare.

    Every reported metric of every rank is compared by ``training_iteration``, then the number of
    reports, then the final checkpoints. The function must do the same twice: seed it.

    Both runs are quiet, without the trainer's callbacks, and in temporary storage unless its
    ``run_config`` names a ``storage_path``. The trainer itself is left as it is.

    Args:
        trainer: what to verify; a few reports are enough.
        at_report: fail just before this report is sent. By default in the middle, but after the
            first checkpoint; then a run that had none to resume from is a difference, too.
        rank: which rank fails; the last by default.
        fault: ``"kill"`` (SIGKILL), ``"exit"`` (``os._exit(1)``) or ``"raise"`` (an exception).
        tolerance: how far floats may be apart, absolutely or relatively; other values must be
            equal, NaN equals NaN.
        ignore: names of metrics and of checkpoint entries and files that may differ. Times are
            never compared: names such as ``epoch_time``, ``elapsed`` or ``rows_per_second``.

    Raises:
        TrainingFailedError: the undisturbed run fails.
        ValueError: an argument does not fit the trainer or what it reports.
    """
    rank = _checked_rank(trainer, rank, fault)
    comparison = _comparison(tolerance, ignore)
    storage = None
    if trainer.run_config.storage_path is None:
        storage = tempfile.mkdtemp(prefix="lockstep-verify-")
    try:
        undisturbed = _variant(trainer, storage, max_failures=0, plan=None).fit()
        place = _place(History.of(undisturbed), at_report)
        plan = _plan(fault, rank, place)
        disturbed = _fit_disturbed(_variant(trainer, storage, max_failures=1, plan=plan))
        differences, explanation = _judge(
            comparison, undisturbed, disturbed, must_resume=at_report is None
        )
        if not differences:
            explanation = _success(History.of(disturbed), fault, rank, place)
    except BaseException:
        if storage is not None:
            shutil.rmtree(storage, ignore_errors=True)
        raise
    report = ResumeReport(tuple(differences), undisturbed, disturbed, plan, explanation)
    if storage is not None:
        weakref.finalize(report, shutil.rmtree, storage, ignore_errors=True)
    return report


def _checked_rank(trainer: DataParallelTrainer, rank: int | None, fault: str) -> int:
    if not isinstance(trainer, DataParallelTrainer):
        raise TypeError(f"verify_resume({trainer!r}): expected a trainer, such as a TorchTrainer.")
    if fault not in get_args(Fault):
        raise ValueError(f"verify_resume(fault={fault!r}): expected 'kill', 'exit' or 'raise'.")
    if trainer.scaling_config.num_workers == 0 and fault != "raise":
        raise ValueError(
            f"verify_resume(fault={fault!r}) would end this very process, because with "
            "num_workers=0 the function runs in it; use fault='raise', or a worker."
        )
    last = trainer.scaling_config.sizes[0] - 1
    if rank is not None and (type(rank) is not int or not 0 <= rank <= last):
        raise ValueError(f"verify_resume(rank={rank!r}): expected a rank from 0 to {last}.")
    return last if rank is None else rank


def _comparison(tolerance: float, ignore: Collection[str]) -> Comparison:
    if not is_number(tolerance):
        raise TypeError(f"verify_resume(tolerance={tolerance!r}): expected a number.")
    if not tolerance >= 0:
        raise ValueError(f"verify_resume(tolerance={tolerance!r}): must be 0 or more.")
    if isinstance(ignore, str):
        raise TypeError(f"verify_resume(ignore={ignore!r}): expected a list of names.")
    return Comparison(tolerance, ignore)


def _variant(
    trainer: DataParallelTrainer, storage: str | None, *, max_failures: int, plan: FaultPlan | None
) -> DataParallelTrainer:
    """The same training as another run; the trainer itself stays as it is."""
    config: RunConfig = replace(
        trainer.run_config,
        failure_config=FailureConfig(max_failures),
        callbacks=(),
        resume="never",
        verbose=0,
    )
    if storage is not None:
        config = replace(config, storage_path=storage)
    if config.checkpoint_config.num_to_keep == 0:  # the last one is to be compared
        config = replace(config, checkpoint_config=replace(config.checkpoint_config, num_to_keep=1))
    return trainer.with_changes(run_config=config, fault_plan=plan)


def _place(undisturbed: History, at_report: int | None) -> int:
    count = len(undisturbed.rows)
    if not count:
        raise ValueError(
            "verify_resume: the training function made no report, and a fault happens at one; "
            "call train.report() in it."
        )
    if at_report is not None:
        if type(at_report) is not int or not 1 <= at_report <= count:
            raise ValueError(
                f"verify_resume(at_report={at_report!r}): the undisturbed run made {count} "
                f"report(s); choose one from 1 to {count}."
            )
        return at_report
    middle = count // 2 + 1
    first = undisturbed.first_checkpoint
    return min(middle if first is None else max(middle, first + 1), count)


def _plan(fault: Fault, rank: int, at_report: int) -> FaultPlan:
    if fault == "kill":
        return FaultPlan().kill(rank=rank, at_report=at_report)
    if fault == "exit":
        return FaultPlan().exit(rank=rank, at_report=at_report)
    error = InjectedError("injected by verify_resume")
    return FaultPlan().raise_in(rank=rank, at_report=at_report, error=error)


def _fit_disturbed(trainer: DataParallelTrainer) -> Result:
    try:
        return trainer.fit()
    except TrainingFailedError as error:
        if error.result is None:
            raise
        return error.result


def _judge(
    comparison: Comparison, undisturbed: Result, disturbed: Result, *, must_resume: bool
) -> tuple[list[Difference], str]:
    """What differs, and the sentence about it (empty where nothing does)."""
    expected, got = History.of(undisturbed), History.of(disturbed)
    differences = list(find_differences(comparison, expected, got))
    if disturbed.state == "failed":
        error = disturbed.error
        differences.append(Difference("the restarted function", None, "finished", error))
        return differences, explain_failure(got, error)
    if got.attempts == 1:
        differences.append(Difference("the number of attempts", None, 2, 1))
        return differences, (
            "The injected fault ended no attempt: the function catches what report() raises."
        )
    if expected.iterations != got.iterations:
        differences.append(Difference(REPORTS, None, expected.iterations, got.iterations))
    differences += _checkpoint_differences(comparison, undisturbed, disturbed)
    if must_resume and not got.resumed:
        differences.append(Difference("the checkpoint to resume from", None, "there", "missing"))
        return differences, explain_no_checkpoint(expected)
    return differences, explain(comparison, expected, got, differences) if differences else ""


def _checkpoint_differences(
    comparison: Comparison, undisturbed: Result, disturbed: Result
) -> Iterator[Difference]:
    one, other = undisturbed.checkpoint, disturbed.checkpoint
    if one is not None and other is not None:
        for place, expected, got in comparison.checkpoints(one, other):
            yield Difference(place, None, expected, got)
    elif one is not other:
        yield Difference("the final checkpoint", None, one, other)


def _success(got: History, fault: Fault, rank: int, at_report: int) -> str:
    happened = {
        "kill": f"rank {rank} was killed at report {at_report}",
        "exit": f"rank {rank} exited at report {at_report}",
        "raise": f"rank {rank} raised at report {at_report}",
    }[fault]
    if got.resumed:
        begun = f"the run went on after training_iteration {got.after_restart[0].iteration - 1}"
    else:
        begun = "the run began again, because there was no checkpoint yet"
    return (
        f"Survives: {happened}, {begun}, and all {got.iterations} rows and the final checkpoint "
        "are those of the undisturbed run."
    )
