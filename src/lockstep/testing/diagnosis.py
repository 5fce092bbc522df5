"""Where a disturbed run differs from the undisturbed one, and the likely cause in one sentence."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lockstep.error_record import summarise_error
from lockstep.journal import parse_line, read_lines
from lockstep.journal.records import reported_metrics
from lockstep.journal.segments import read_journal
from lockstep.result import Result
from lockstep.run_layout import JOURNAL_FILE
from lockstep.storage import open_storage
from lockstep.testing.compare import ABSENT, Comparison

__all__ = [
    "REPORTS",
    "Difference",
    "History",
    "Row",
    "explain",
    "explain_failure",
    "explain_no_checkpoint",
    "find_differences",
]

REPORTS = "the number of reports"
"""The ``what`` of a Difference in the number of reports."""

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 80


@dataclass(frozen=True)
class Difference:
    """One thing that a failure changed.

    Attributes:
        what: the metric (``"loss"``, ``"loss on rank 1"``), or the place in the final checkpoint.
        iteration: the row's ``training_iteration``; None if the difference is not in a row.
        expected: the value in the undisturbed run.
        got: the value in the disturbed run.
        attempt: the attempt of the disturbed run that reported the row; None if it is not in a row.
    """

    what: str
    iteration: int | None
    expected: Any
    got: Any
    attempt: int | None = None

    def __str__(self) -> str:
        where = "" if self.iteration is None else f" at training_iteration {self.iteration}"
        return f"{self.what} is {self.instead}{where}"

    @property
    def instead(self) -> str:
        """``0.3 instead of 0.2``: only the digits that are needed; long values are cut."""
        expected, got = self.expected, self.got
        if isinstance(expected, float) and isinstance(got, float):
            short = f"{got:.4g}", f"{expected:.4g}"
            if short[0] != short[1]:
                return " instead of ".join(short)
        return f"{_shown.repr(got)} instead of {_shown.repr(expected)}"


@dataclass(frozen=True)
class Row:
    """One report: the metrics of all ranks together, and those of each rank."""

    attempt: int
    iteration: int
    metrics: dict[str, Any]
    ranks: list[dict[str, Any]]
    reduced: bool


@dataclass(frozen=True)
class History:
    """The reports of a run, from its journal."""

    rows: list[Row]
    attempts: int
    first_checkpoint: int | None
    """The number of the report that had the first checkpoint."""
    resumed: bool
    """Whether the second attempt could start from a checkpoint of the first."""

    @classmethod
    def of(cls, result: Result) -> History:
        """Read a run's journal."""
        storage = open_storage(result.path, result.filesystem)
        rows = []
        attempts, first, resumed = 0, None, False
        for record in map(parse_line, read_lines(read_journal(storage, JOURNAL_FILE))):
            if record["event"] == "report":
                rows.append(
                    Row(
                        record["attempt"],
                        record["iteration"],
                        reported_metrics(record),
                        record["ranks"],
                        "reduced" in record,
                    )
                )
            elif record["event"] == "attempt":
                attempts = record["attempt"]
                resumed = resumed or (attempts == 2 and first is not None)
            elif record["event"] == "checkpoint" and first is None:
                first = record["index"]
        return cls(rows, attempts, first, resumed)

    @property
    def iterations(self) -> int:
        """How far the run came: the number of its rows; repeated rows count once."""
        return max((row.iteration for row in self.rows), default=0)

    def row(self, iteration: int) -> Row | None:
        """The last row of that ``training_iteration``."""
        return next((row for row in reversed(self.rows) if row.iteration == iteration), None)

    @property
    def after_restart(self) -> list[Row]:
        """The second attempt's rows."""
        return [row for row in self.rows if row.attempt > 1]

    def positions(self) -> list[str]:
        """The metrics that show the training's progress: integers that grow with every row."""
        names = []
        for name in self.rows[0].metrics if len(self.rows) > 1 else ():
            values: list[Any] = [row.metrics.get(name) for row in self.rows]
            integers = all(type(value) is int for value in values)
            if integers and all(one < other for one, other in itertools.pairwise(values)):
                names.append(name)
        return names


def find_differences(
    comparison: Comparison, expected: History, got: History
) -> Iterator[Difference]:
    """Yield where the rows differ, in the order in which they were reported."""
    for row in got.rows:
        twin = expected.row(row.iteration)
        if twin is not None:
            for what, one, other in _compare_rows(comparison, twin, row):
                yield Difference(what, row.iteration, one, other, row.attempt)


def _compare_rows(
    comparison: Comparison, expected: Row, got: Row
) -> Iterator[tuple[str, Any, Any]]:
    yield from comparison.values(expected.metrics, got.metrics)
    if len(expected.ranks) != len(got.ranks):
        yield "the number of ranks", len(expected.ranks), len(got.ranks)
        return
    for rank, (one, other) in enumerate(zip(expected.ranks, got.ranks, strict=True)):
        if rank > 0 or expected.reduced:
            for what, left, right in comparison.values(one, other):
                yield f"{what} on rank {rank}", left, right


def explain(
    comparison: Comparison, expected: History, got: History, differences: list[Difference]
) -> str:
    """Explain the first difference; ``differences`` is not empty."""
    # From the most to the least certain cause: a difference before the fault, no rows after the
    # restart, equal rows, a different first row after the restart, a later difference.
    first = differences[0]
    if first.attempt == 1:
        return (
            f"{_capital(str(first))}, before the fault: the function is not repeatable, so its "
            "resuming cannot be checked; seed it, or name the metric in ignore."
        )
    after = got.after_restart
    row_differences = [d for d in differences if d.iteration is not None]
    if not after:
        return f"The restarted function made no report: {first}."
    if not row_differences:
        return _explain_the_end(expected, first)
    if row_differences[0].iteration == after[0].iteration:
        return _explain_first_row(comparison, expected, got, row_differences)
    agreeing = [k for k, value in after[0].metrics.items() if comparison.considers(k, k, value)]
    return (
        f"{_capital(str(row_differences[0]))}, although the first row after the restart, "
        f"training_iteration {after[0].iteration}, agrees on {', '.join(agreeing)}: "
        "the function loads these but not everything that it needs, probably not the optimizer, "
        "a scheduler or a random state."
    )


def explain_failure(got: History, error: BaseException | None) -> str:
    """Explain that the restarted function failed."""
    failed = summarise_error({"type": type(error).__name__, "message": error}).rstrip(".")
    if got.after_restart:
        when = f"after training_iteration {got.after_restart[-1].iteration}"
    else:
        when = "before its first report"
    cause = "it cannot resume from its own checkpoint" if got.resumed else "it cannot start over"
    return f"The restarted function failed {when} with {failed}: {cause}."


def explain_no_checkpoint(expected: History) -> str:
    """Explain that there was no checkpoint to resume from."""
    count, first = len(expected.rows), expected.first_checkpoint
    if first is None:
        return (
            "The function reports no checkpoint, so after a failure it starts over and all its "
            "work is lost; pass a checkpoint to report()."
        )
    if first >= count:
        return (
            f"The first checkpoint comes with report {first} of {count}, so there is nothing to "
            "resume from before the end; save earlier, or train for more reports."
        )
    return (
        "No checkpoint was committed before the failure, so nothing was resumed: an upload was "
        "still running; give a later at_report."
    )


def _explain_first_row(
    comparison: Comparison, expected: History, got: History, differences: list[Difference]
) -> str:
    row = got.after_restart[0]
    here = {d.what: d for d in differences if d.iteration == row.iteration}
    # A wrong position explains all other differences of the row, so it is named first.
    positions = expected.positions()
    lead = next((here[name] for name in positions if name in here), differences[0])
    head = (
        f"The first row after the restart, training_iteration {row.iteration}, has {lead.what} "
        f"{lead.instead}"
    )
    if not list(_compare_rows(comparison, expected.rows[0], row)):
        return (
            f"{head}: it equals the undisturbed run's first row; the function does not load its "
            "checkpoint."
        )
    if lead.what in positions:
        return f"{head}: {_explain_position(expected, row, lead)}"
    if len(got.after_restart) == len(expected.rows) and row.iteration > 1:
        return (
            f"{head}, and all {len(expected.rows)} reports are repeated: the function does not "
            "load how far it had come."
        )
    # A value near the expected one comes from a trained model; otherwise training started over.
    missing = (
        "the optimizer, a scheduler or a random state"
        if _is_nearer(lead, expected.rows[0])
        else "the model"
    )
    agreeing = ", ".join(name for name in positions if name not in here)
    if agreeing:
        head += f", although it agrees on {agreeing}"
    loads = f"loads {agreeing} but not" if agreeing else "does not load"
    return f"{head}: the function {loads} everything that it needs, probably not {missing}."


def _explain_position(expected: History, row: Row, lead: Difference) -> str:
    found = [r.iteration for r in expected.rows if r.metrics[lead.what] == lead.got]
    at = found[0] if found else None
    if at == row.iteration - 1:
        return f"the function repeats its checkpoint's {lead.what}; continue after the saved one."
    if at == 1:
        return (
            f"the function loads its checkpoint but not the {lead.what}; save and load that, too."
        )
    if lead.got is ABSENT:
        return f"the function does not report {lead.what} after loading its checkpoint."
    if at is not None and at > row.iteration:
        return f"the function skips {at - row.iteration} report(s); continue after the saved one."
    return "the function does not resume where its checkpoint was saved."


def _explain_the_end(expected: History, first: Difference) -> str:
    if first.what == REPORTS:
        such_as = "".join(f", such as {name}" for name in expected.positions()[:1])
        return (
            f"Every row agrees, but {first}: the function does not end where it should; "
            f"count from a saved value{such_as}."
        )
    return (
        f"Every row agrees, but in the final checkpoint {first}: the function saves something "
        "that it does not load, or that depends on the failure."
    )


def _is_nearer(difference: Difference, first: Row) -> bool:
    """Whether the value is nearer to the expected value than to the first row's."""
    values = (difference.expected, difference.got, first.metrics.get(difference.what))
    if not all(isinstance(value, (int, float)) for value in values):
        return True
    expected, got, start = values
    return bool(abs(got - expected) < abs(start - expected) / 2)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:] if text.startswith("the ") else text
