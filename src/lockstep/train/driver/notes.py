"""What a run reports about itself while it is running: pure functions from facts to sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.config import StopCondition
from lockstep.metrics import AUTOMATIC_KEYS, flatten, look_up
from lockstep.train.driver.early_stopping import EarlyStopping
from lockstep.train.driver.events import ExplainHang
from lockstep.train.driver.failure import name_ranks
from lockstep.train.driver.hangs import Stalled
from lockstep.train.protocol import Report
from lockstep.train.reduction import keys_of_nobody

__all__ = [
    "NEVER_ROLLS_BACK",
    "hang_note",
    "held_note",
    "lingering_note",
    "missing_score_note",
    "missing_stop_note",
    "repeats_note",
    "retry_note",
    "stalled_note",
    "unanswered_note",
    "unknown_keys_note",
]


NEVER_ROLLS_BACK = (
    "Guard(action='rollback') goes back as often as FailureConfig(max_failures=…) allows. That is "
    "0 here, so the run ends."
)


def hang_note(hang: ExplainHang, *, logs: str | None = None) -> str:
    """Nothing happens any more. ``logs``: where the stacks are, if nothing shows them."""
    missing = name_ranks(hang.missing)
    one = len(hang.missing) == 1
    has = "has" if one else "have"
    seconds = f"{hang.seconds:.{0 if hang.seconds >= 10 else 1}f} s"
    detail = f" ({hang.detail})" if hang.detail else ""
    if hang.starting:
        return f"{missing.capitalize()} {has} not started for {seconds}{detail}."
    where = "its stack follows" if one else "their stacks follow"
    if logs is not None:
        where = f"its stack is in {logs}" if one else f"their stacks are in {logs}"
    returned = f"{_have(hang.returned)} returned" if hang.returned else ""
    if hang.waiting:
        done = f", and {returned}" if returned else ""
        return (
            f"{_have(hang.waiting).capitalize()} waited {seconds} at report {hang.number} for "
            f"{missing}{done}{detail}; {where}."
        )
    if returned:
        return (
            f"{returned.capitalize()}, but {missing} {has} not, and {has} come to no report for "
            f"{seconds}{detail}: a collective with {name_ranks(hang.returned)} would never end; "
            f"{where}."
        )
    before = f", and it took {hang.longest:.1f} s at most before" if hang.longest else ""
    return (
        f"No rank has come to a report for {seconds}{before}{detail}; if this is not a long step, "
        f"look where {'it is' if one else 'they are'}: {where}."
    )


def _have(ranks: Sequence[int]) -> str:
    return f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def retry_note(attempt: int, repeats: int, delay_s: float, origin: str) -> str:
    """What follows ``attempt``, which has failed; ``origin``: ``from checkpoint_000003``."""
    text = f"Starting attempt {attempt + 1} {origin}."
    if delay_s:
        text = f"Attempt {attempt + 1} starts in {delay_s:g} s, {origin}; Ctrl-C ends the run."
    return f"{repeats_note(repeats)} {text}" if repeats > 1 else text


def repeats_note(repeats: int) -> str:
    """Says that attempts fail in the same way, so another attempt will not help."""
    return (
        f"The last {repeats} attempts failed at the same place, and none got further: starting "
        "again is unlikely to help."
    )


def lingering_note(rank: int, threads: Sequence[tuple[str, str]], exit_s: float) -> str:
    """A worker cannot exit, because the function has left threads behind."""
    (name, place), *others = threads
    more = f" and {len(others)} more thread(s)" if others else ""
    return (
        f"The function has returned on every rank, but on rank {rank} its thread {name!r}{more} "
        f"still runs ({place}), so the run waits for it, {exit_s:g} s at most; end it in the "
        "function, or make it a daemon thread."
    )


def stalled_note(stalled: Stalled, where: str) -> str:
    """A checkpoint does not reach storage; the sentence without its subject."""
    return f"is on its way to {where} since {stalled.seconds:.0f} s: {stalled.doing}"


def unanswered_note(where: str, seconds: float) -> str:
    """Storage delays a run's end."""
    return f"The run has ended, but {where} has not answered for {seconds:g} s; Ctrl-C abandons it."


def missing_score_note(attribute: str, row: Mapping[str, Any]) -> str:
    """A checkpoint lacks the score that ranks checkpoints."""
    return (
        f"CheckpointConfig(checkpoint_score_attribute={attribute!r}): the checkpoint and its "
        f"report have no such number ({_reported(row)}); report it, or name another. No checkpoint "
        "is deleted before one has a score."
    )


def missing_stop_note(stop: StopCondition | None, row: Mapping[str, Any]) -> str | None:
    """``RunConfig(stop=…)`` names what the first row does not have; None if the row has it."""
    named = [stop.metric] if isinstance(stop, EarlyStopping) else stop
    if not isinstance(named, (Mapping, list)):
        return None
    missing = [key for key in named if look_up(row, key) is None]
    if not missing:
        return None
    return (
        f"RunConfig(stop=…) names {', '.join(map(repr, missing))}, which the first report does not "
        f"have ({_reported(row)}): misspelt, or only in later reports."
    )


def _reported(row: Mapping[str, Any]) -> str:
    own = [key for key in row if key not in AUTOMATIC_KEYS]
    return f"it has {', '.join(map(repr, own)) or 'no metrics'}"


def unknown_keys_note(reports: Sequence[Report]) -> str | None:
    """``reduce`` names keys that no rank has reported; None if every key was."""
    unknown = keys_of_nobody(reports)
    if not unknown:
        return None
    known = ", ".join(map(repr, flatten(reports[0].metrics or {}))) or "nothing"
    return (
        f"report(reduce=…) names {', '.join(map(repr, unknown))}, which no rank has in report "
        f"{reports[0].number} (it has {known}): misspelt, or only in other reports."
    )


def held_note(seconds: float, where: str, every: object) -> str:
    """A state was saved late, because the one before it was still being written."""
    text = f"A report waited {seconds:.1f} s until the state before was written to {where}"
    if every == "auto":  # which waits only at the end, or when a worker is preempted
        return f"{text}."
    return (
        f"{text}: storage is slower than the interval. Save less often: "
        "CheckpointConfig(every='auto')."
    )
