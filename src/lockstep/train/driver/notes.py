"""What a run reports about itself while it is running: pure functions from facts to sentences."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.metrics import flatten
from lockstep.train.driver.events import ExplainHang
from lockstep.train.driver.failure import name_ranks
from lockstep.train.driver.hangs import Stalled
from lockstep.train.protocol import Report
from lockstep.train.reduction import keys_of_nobody

__all__ = ["hang_note", "silence_note", "stalled_note", "unanswered_note", "unknown_keys_note"]


def hang_note(hang: ExplainHang, *, logs: str | None = None) -> str:
    """Some ranks wait at a report for others. ``logs``: where stacks are, if nothing shows them."""
    waiting, missing = name_ranks(hang.waiting), name_ranks(hang.missing)
    has = "has" if len(hang.waiting) == 1 else "have"
    one = len(hang.missing) == 1
    where = "its stack follows" if one else "their stacks follow"
    if logs is not None:
        where = f"its stack is in {logs}" if one else f"their stacks are in {logs}"
    seconds = f"{hang.seconds:.{0 if hang.seconds >= 10 else 1}f}"
    return (
        f"{waiting.capitalize()} {has} waited {seconds} s at report {hang.number} for {missing}; "
        f"{where}."
    )


def silence_note(seconds: float, longest: float, *, logs: str | None = None) -> str:
    """No rank has reached a report for longer than ever before; ``logs``: see ``hang_note``."""
    where = "their stacks follow" if logs is None else f"their stacks are in {logs}"
    return (
        f"No rank has come to a report for {seconds:.0f} s, and it took {longest:.1f} s at most "
        f"before; if this is not a long step, look where they are: {where}."
    )


def stalled_note(stalled: Stalled, where: str) -> str:
    """A checkpoint does not reach storage; the sentence without its subject."""
    return f"is on its way to {where} since {stalled.seconds:.0f} s: {stalled.doing}"


def unanswered_note(where: str, seconds: float) -> str:
    """Storage delays a run's end."""
    return f"The run has ended, but {where} has not answered for {seconds:g} s; Ctrl-C abandons it."


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
