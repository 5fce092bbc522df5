"""verify_resume: prove that a training function survives a failure, or explain why it does not."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator
from contextlib import ExitStack
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
    """The outcome of ``verify_resume``. It is true if the failure changed nothing.

    ``str()`` is one sentence: the first metric and step that differ, and the likely cause.

    Attributes:
        differences: everything that the failure changed: rows first, in their order.
        undisturbed, disturbed: the two Results. If the trainer names no ``storage_path``, their
            files are deleted together with this report.
        fault_plan: the injected fault.
        explanation: the sentence.
    """

    differences: tuple[Difference, ...]
    undisturbed: Result
    disturbed: Result
    fault_plan: FaultPlan
    explanation: str

    @property
    def ok(self) -> bool:
        """Whether there is no difference."""
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
    """Fit the trainer undisturbed, then once more with an injected failure, and compare both runs.

    Every reported metric of every rank is compared by ``training_iteration``, then the number of
    reports, then the final checkpoints. The training function must be repeatable: seed it.

    Both runs print nothing and call none of the trainer's callbacks. They use temporary storage
    unless the trainer's ``run_config`` names a ``storage_path``. The trainer is not changed.

    Args:
        trainer: the trainer to verify; a few reports are enough.
        at_report: fail just before this report is sent. By default the middle one, but after the
            first checkpoint; then a missing checkpoint to resume from counts as a difference, too.
        rank: the rank that fails; by default the last.
        fault: ``"kill"`` (SIGKILL), ``"exit"`` (``os._exit(1)``) or ``"raise"`` (an exception).
        tolerance: how far floats may differ, absolutely or relatively. Other values must be equal;
            NaN equals NaN.
        ignore: names of metrics, checkpoint entries and files that may differ. Times and speeds
            are never compared: names such as ``epoch_time``, ``eval_runtime`` or
            ``rows_per_second``. Of absolute paths only the last part is compared.

    Raises:
        TrainingFailedError: the undisturbed run failed.
        ValueError: an argument does not fit the trainer or its reports.
    """
    rank = _checked_rank(trainer, rank, fault)
    comparison = _comparison(tolerance, ignore)
    with ExitStack() as cleanup:
        storage = None
        if trainer.run_config.storage_path is None:
            storage = tempfile.mkdtemp(prefix="lockstep-verify-")
            cleanup.callback(shutil.rmtree, storage, ignore_errors=True)
        undisturbed = _variant(trainer, storage, max_failures=0, plan=None).fit()
        place = _place(History.of(undisturbed), at_report)
        plan = _plan(fault, rank, place)
        disturbed = _fit_disturbed(_variant(trainer, storage, max_failures=1, plan=plan))
        differences, explanation = _judge(
            comparison, undisturbed, disturbed, must_resume=at_report is None
        )
        if not differences:
            explanation = _success(History.of(disturbed), fault, rank, place)
        report = ResumeReport(tuple(differences), undisturbed, disturbed, plan, explanation)
        weakref.finalize(report, cleanup.pop_all().close)
        return report


def _checked_rank(trainer: DataParallelTrainer, rank: int | None, fault: str) -> int:
    if not isinstance(trainer, DataParallelTrainer):
        raise TypeError(f"verify_resume({trainer!r}): expected a trainer, such as a TorchTrainer.")
    if fault not in get_args(Fault):
        raise ValueError(f"verify_resume(fault={fault!r}): expected 'kill', 'exit' or 'raise'.")
    if trainer.scaling_config.num_workers == 0 and fault != "raise":
        raise ValueError(
            f"verify_resume(fault={fault!r}) would end this process: with num_workers=0 the "
            "function runs in it; use fault='raise', or num_workers=1."
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
    """Return a copy of the trainer for a run of its own."""
    config: RunConfig = replace(
        trainer.run_config,
        failure_config=FailureConfig(max_failures),
        callbacks=(),
        resume="never",
        verbose=0,
    )
    if storage is not None:
        config = replace(config, storage_path=storage)
    if config.checkpoint_config.num_to_keep == 0:  # the last one is compared
        config = replace(config, checkpoint_config=replace(config.checkpoint_config, num_to_keep=1))
    return trainer.with_changes(run_config=config, fault_plan=plan)


def _place(undisturbed: History, at_report: int | None) -> int:
    count = len(undisturbed.rows)
    if not count:
        raise ValueError(
            "verify_resume: the training function made no report, but faults are injected at "
            "reports; call train.report() in it."
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
    if fault == "raise":
        error = InjectedError("injected by verify_resume")
        return FaultPlan().raise_in(rank=rank, at_report=at_report, error=error)
    plan = FaultPlan().kill if fault == "kill" else FaultPlan().exit
    return plan(rank=rank, at_report=at_report)


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
    """Return the differences, and the sentence that explains them ("" if there are none)."""
    expected, got = History.of(undisturbed), History.of(disturbed)
    differences = list(find_differences(comparison, expected, got))
    if disturbed.state == "failed":
        error = disturbed.error
        differences.append(Difference("the restarted function", None, "finished", error))
        return differences, explain_failure(got, error)
    if got.attempts == 1:
        differences.append(Difference("the number of attempts", None, 2, 1))
        return differences, (
            "The injected fault ended no attempt: the function catches the error of report()."
        )
    if expected.iterations != got.iterations:
        differences.append(Difference(REPORTS, None, expected.iterations, got.iterations))
    differences += _checkpoint_differences(comparison, undisturbed, disturbed)
    if must_resume and not got.resumed:
        differences.append(Difference("the checkpoint to resume from", None, "present", "missing"))
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
    verb = {"kill": "was killed", "exit": "exited", "raise": "raised"}[fault]
    happened = f"rank {rank} {verb} at report {at_report}"
    if got.resumed:
        then = f"the run resumed after training_iteration {got.after_restart[0].iteration - 1}"
    else:
        then = "the run started over, because there was no checkpoint yet"
    return (
        f"Survives: {happened}, {then}, and all {got.iterations} rows and the final checkpoint "
        "are equal to those of the undisturbed run."
    )
