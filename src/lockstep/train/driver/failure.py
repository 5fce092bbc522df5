"""What to do about a failed attempt: a pure decision, and the sentence that names its cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lockstep import errors
from lockstep.console.text import shorten
from lockstep.engine.base import OUT_OF_MEMORY
from lockstep.error_record import error_place, pack_error, summarise_error
from lockstep.errors import (
    GuardError,
    GuardRollbackError,
    GuardSuspicion,
    PreemptedError,
    WorkerDiedError,
)

__all__ = [
    "FailurePolicy",
    "WorkerFailure",
    "describe",
    "died",
    "error_records",
    "fails_again",
    "first_cause",
    "found_by_guard",
    "is_final",
    "lost_connection",
    "name_ranks",
    "needs_verdict",
    "ranks_with_findings",
    "signature",
]

# Doubled for each attempt without progress (docs/decisions/0030).
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 60.0
# An error is read in a terminal: a thousand ranks, or a tensor in a message, must not fill it.
_MAX_RANKS = 8
_MAX_TEXT = 2000
_MAX_OTHERS = 3
_MAX_OTHER_TEXT = 300

SHARED_FINDING = "gradient(s) of a step"
"""In the message of a guard whose own metrics were fine."""

_OWN_TYPES = frozenset(errors.__all__)
"""Errors of lockstep: their messages need no type name before them."""

_CRASHES = {
    "SIGSEGV": "segmentation fault",
    "SIGBUS": "bus error",
    "SIGILL": "illegal instruction",
    "SIGFPE": "arithmetic error",
    "SIGABRT": "aborted",
}

# What a rank sees when another one is gone: in Python's sockets, torch's stores and process groups
# (gloo, NCCL, MPI), Horovod and TensorFlow's collectives.
_CONNECTION_TYPES = frozenset(
    {
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "HorovodInternalError",
        "UnavailableError",
    }
)
_CONNECTION_WORDS = re.compile(
    r"connection (was |has been )?(closed|reset|refused|aborted|lost)|socket closed|broken pipe"
    r"|collective ops? (is|was|has been) aborted"
)
# A library, and what it says somewhere behind its name. Not a pattern with ".*": on a long text
# with many such names that would take quadratic time, in the driver.
_LIBRARY_WORDS = {
    "gloo": ("peer", "timed out"),
    "nccl": ("abort", "remote", "unhandled system error"),
    "process group": ("aborted", "shutdown", "shut down"),
}
# A message may be megabytes long, and the loop's thread searches it.
_MAX_MESSAGE = 100_000


@dataclass(frozen=True)
class WorkerFailure:
    """One rank's failure, as an error record."""

    rank: int
    error: dict[str, Any]
    died: bool = False
    """The process ended without an exception; else the function raised."""
    before_start: bool = False
    """The function was not called yet: loading it, or setting up its framework, raised."""


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

    def delay_s(self, fruitless: int) -> float:
        """How long to wait before the next attempt, by the number of attempts without progress."""
        return (
            # The first failure says little: most are retried at once.
            min(_FIRST_DELAY_S * 2.0 ** (fruitless - 2), _LONGEST_DELAY_S) if fruitless > 1 else 0.0
        )


def _within(count: int, limit: int) -> Literal["retry", "raise"]:
    return "retry" if limit < 0 or count <= limit else "raise"


def died(rank: int, exitcode: int | None, detail: str) -> WorkerFailure:
    """The failure of a worker whose process ended by itself."""
    if detail.startswith(OUT_OF_MEMORY):
        memory = detail.removeprefix(OUT_OF_MEMORY).removeprefix("; ")
        ending = "was killed because the machine ran out of memory" + (
            f" ({memory}); use fewer workers or smaller batches"
            if memory
            else "; use fewer workers or smaller batches"
        )
    else:
        ending = _ending(exitcode) + (f" ({detail})" if detail else "")
    error = WorkerDiedError(f"{_subject(rank)}{ending}.", exitcode)
    return WorkerFailure(rank, pack_error(error), died=True)


def error_records(failures: Sequence[WorkerFailure]) -> list[dict[str, Any]]:
    """Each rank's error as the journal keeps it, the first cause first."""
    cause = first_cause(failures)
    ordered = [cause, *(failure for failure in failures if failure is not cause)]
    return [{"rank": failure.rank, "error": failure.error} for failure in ordered]


def lost_connection(failure: WorkerFailure) -> bool:
    """Whether it looks like the consequence of another rank's end: a broken process group."""
    return not failure.died and any(
        record["type"] in _CONNECTION_TYPES or _names_lost_connection(record["message"])
        for record in _chain(failure.error)
    )


def _names_lost_connection(message: str) -> bool:
    text = message[:_MAX_MESSAGE].lower()
    if _CONNECTION_WORDS.search(text):
        return True
    for library, words in _LIBRARY_WORDS.items():
        start = text.find(library)
        if start >= 0 and any(text.find(word, start) >= 0 for word in words):
            return True
    return False


def first_cause(failures: Sequence[WorkerFailure]) -> WorkerFailure:
    """The failure that brought the others about.

    A death breaks the connections of its peers, whose own errors may arrive before the news of the
    death does. So a death goes first, then whichever came first, and broken connections last. An
    abort counts as an error: libraries end a process that way when its peer is gone.
    """
    return min(failures, key=_precedence)


def _precedence(failure: WorkerFailure) -> int:
    # The order explained in first_cause.
    if _is(failure, PreemptedError):
        return 0  # added at the end, it explains all the others
    if lost_connection(failure):
        return 3
    if found_by_guard(failure) and SHARED_FINDING in failure.error["message"]:
        return 3  # gradients are averaged over all ranks: one of them has brought it about
    return 1 if failure.died and "SIGABRT" not in failure.error["message"] else 2


def fails_again(failure: WorkerFailure) -> bool:
    """Whether another attempt would fail like this one: it raised before the function was called.

    A broken connection is another matter: a port may be taken, or a peer have died.
    """
    return failure.before_start and not lost_connection(failure)


def is_final(failure: WorkerFailure) -> bool:
    """Whether the user wants no other attempt after it: ``Guard(action="stop")``."""
    return _is(failure, GuardError) or _is(failure, GuardSuspicion)


def needs_verdict(failure: WorkerFailure) -> bool:
    """Whether the guard has found something, and the step was not run again yet."""
    return _is(failure, GuardSuspicion)


def found_by_guard(failure: WorkerFailure) -> bool:
    """Whether the guard of a rank has ended the attempt."""
    return is_final(failure) or _is(failure, GuardRollbackError)


def ranks_with_findings(failures: Sequence[WorkerFailure]) -> tuple[int, ...]:
    """The ranks whose guards have ended an attempt; without those that only share a gradient."""
    found = [failure for failure in failures if found_by_guard(failure)]
    own = [one for one in found if SHARED_FINDING not in one.error["message"]]
    return tuple(sorted({failure.rank for failure in own or found}))


def signature(failure: WorkerFailure) -> tuple[str, ...]:
    """What two failures have in common that came at the same place: the type, and where."""
    place = error_place(failure.error)
    return (failure.error["type"], *((failure.error["message"],) if place is None else place))


def describe(failures: Sequence[WorkerFailure], attempt: int, world_size: int) -> str:
    """One sentence: which rank, what, and which others followed."""
    cause = first_cause(failures)
    notes = [f"in attempt {attempt}"] if attempt > 1 else []
    if fails_again(cause):
        notes.append("before the training function was called")
    # Reversed, so that of a rank with several failures the first one stays.
    others = {failure.rank: failure for failure in reversed(failures)}
    del others[cause.rank]
    if found_by_guard(cause):
        # Which ranks have shared a broken gradient says nothing more.
        with_own = ranks_with_findings(failures)
        others = {rank: others[rank] for rank in others if rank in with_own}
    cut_off: list[int] = []
    also: list[WorkerFailure] = []
    for rank, failure in others.items():
        if not lost_connection(cause) and lost_connection(failure):
            cut_off.append(rank)
        else:
            also.append(failure)
    notes += _other_failures(cause, also)
    if cut_off:
        notes.append(
            f"{name_ranks(cut_off)} lost {'its' if len(cut_off) == 1 else 'their'} connection to it"
        )
    text = _sentence(cause, world_size)
    return f"{text} ({'; '.join(notes)})." if notes else f"{text}."


def _other_failures(cause: WorkerFailure, others: Sequence[WorkerFailure]) -> list[str]:
    """Who else failed, and with what, where that differs from the cause."""
    groups: dict[str, list[int]] = {}
    for failure in others:
        groups.setdefault(_difference(cause, failure), []).append(failure.rank)
    shown = list(groups.items())[:_MAX_OTHERS]
    notes = [f"{name_ranks(ranks)} failed, too{what}" for what, ranks in shown]
    left = [rank for ranks in list(groups.values())[_MAX_OTHERS:] for rank in ranks]
    return [*notes, f"{name_ranks(left)} failed in other ways"] if left else notes


def _difference(cause: WorkerFailure, failure: WorkerFailure) -> str:
    if failure.died:
        text = failure.error["message"].removeprefix(_subject(failure.rank)).removeprefix("was ")
        return f": {shorten(text.rstrip('.'), _MAX_OTHER_TEXT)}"
    if (failure.error["type"], failure.error["message"]) == (
        cause.error["type"],
        cause.error["message"],
    ):
        return ""
    return f", with {shorten(summarise_error(failure.error), _MAX_OTHER_TEXT).rstrip('.')}"


def name_ranks(ranks: Iterable[int]) -> str:
    """``rank 1``, ``ranks 0, 2 and 3``, ``ranks 0, 1, …, 7 and 9 more``."""
    names = [str(rank) for rank in sorted(ranks)]
    if len(names) == 1:
        return f"rank {names[0]}"
    if len(names) > _MAX_RANKS + 1:
        names[_MAX_RANKS:] = [f"{len(names) - _MAX_RANKS} more"]
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def _sentence(cause: WorkerFailure, world_size: int) -> str:
    subject = f"Rank {cause.rank} of {world_size}" if world_size > 1 else f"Rank {cause.rank}"
    kind, message = cause.error["type"], cause.error["message"].strip()
    if cause.died:
        text = f"{subject} {message.removeprefix(_subject(cause.rank))}"
    elif _is(cause, WorkerDiedError):
        text = f"{subject} failed: {message}"
    elif kind in _OWN_TYPES and message:
        text = message[0].upper() + message[1:]
    else:
        text = f"{subject} failed with {summarise_error(cause.error)}"
    return shorten(text, _MAX_TEXT).rstrip(".")


def _is(failure: WorkerFailure, kind: type[Exception]) -> bool:
    return bool(failure.error["type"] == kind.__name__)


def _subject(rank: int) -> str:
    return f"rank {rank} "


def _chain(record: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    while record is not None:
        yield record
        # As Python prints tracebacks: `raise … from` counts before what was being handled.
        record = record.get("cause") or record.get("context")


def _ending(exitcode: int | None) -> str:
    # The engine could not find out: the process that started the worker is gone, too.
    if exitcode is None:
        return "was lost"
    if exitcode >= 0:
        return f"exited with code {exitcode} before its function returned"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    crash = _CRASHES.get(name)
    return f"crashed ({crash}, {name})" if crash else f"was killed by {name}"
