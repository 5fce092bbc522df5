"""What to do about a failed attempt: a pure decision, and how to say it in one sentence."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any, Literal

from lockstep.error_record import pack_error, summarise_error
from lockstep.errors import WorkerDiedError

__all__ = ["FailurePolicy", "WorkerFailure", "describe", "died", "first_cause"]


@dataclass(frozen=True)
class WorkerFailure:
    """One rank's failure, as an error record."""

    rank: int
    error: dict[str, Any]
    died: bool = False
    """The process ended without saying why; else the function raised."""


@dataclass(frozen=True)
class FailurePolicy:
    """Start again until ``max_failures`` attempts failed (-1: always); preempted ones apart."""

    max_failures: int = 0
    max_preemption_failures: int = -1

    def decide(self, failed_attempts: int) -> Literal["retry", "raise"]:
        """``failed_attempts`` counts the one that has just failed."""
        return _within(failed_attempts, self.max_failures)

    def decide_preempted(self, preempted_attempts: int) -> Literal["retry", "raise"]:
        """The same for attempts that ended because a worker was preempted."""
        return _within(preempted_attempts, self.max_preemption_failures)


def _within(count: int, limit: int) -> Literal["retry", "raise"]:
    return "retry" if limit < 0 or count <= limit else "raise"


def died(rank: int, exitcode: int | None, detail: str) -> WorkerFailure:
    """The failure of a worker whose process ended by itself."""
    message = f"the process of rank {rank} {_ending(exitcode)}"
    if detail:
        message += f" ({detail})"
    return WorkerFailure(rank, pack_error(WorkerDiedError(message + ".", exitcode)), died=True)


def first_cause(failures: tuple[WorkerFailure, ...]) -> WorkerFailure:
    """The failure that brought the others about.

    A death breaks the connections of its peers, whose own errors may arrive before the news of the
    death does. So a death goes first, then whichever came first.
    """
    return next((failure for failure in failures if failure.died), failures[0])


def describe(failures: tuple[WorkerFailure, ...], attempt: int, world_size: int) -> str:
    """One sentence: which rank, what, and how many others followed."""
    cause = first_cause(failures)
    if cause.died:
        text = cause.error["message"].rstrip(".")
        text = text[0].upper() + text[1:]
    else:
        text = f"Rank {cause.rank} failed with {summarise_error(cause.error)}".rstrip(".")
    others = sorted({failure.rank for failure in failures} - {cause.rank})
    if others:
        text += f" (rank{'s' if len(others) > 1 else ''} {_ranks(others)} failed, too)"
    if attempt > 1:
        text += f", in attempt {attempt}"
    return f"{text}, of {world_size} worker{'s' if world_size > 1 else ''}."


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"


def _ending(exitcode: int | None) -> str:
    if exitcode is None:
        return "was lost"
    if exitcode >= 0:
        return f"exited with code {exitcode} before its function returned"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    return f"was killed by {name}"
