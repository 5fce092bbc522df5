"""``lockstep plot RUN… METRIC``: a line chart in the terminal."""

from __future__ import annotations

import math
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from lockstep.checks import is_number
from lockstep.cli.command import Command, WholeNumber, add_run
from lockstep.cli.output import print_json
from lockstep.console.text import clean, format_value
from lockstep.errors import LockstepError
from lockstep.journal.lookup import find_run, parent_of, run_name
from lockstep.journal.records import RunRecords, damage_named, reported_metrics
from lockstep.metrics import flatten, look_up
from lockstep.storage import Storage

__all__ = ["COMMAND", "chart"]

_MARKS = "*o+x#@%&"
_HEIGHT = 16
_LABEL = 10

Points = list[tuple[float, float]]


def _arguments(parser: ArgumentParser) -> None:
    add_run(parser, nargs="+")
    parser.add_argument(
        "metric", metavar="METRIC", help="a reported or logged metric; a/b for nested ones"
    )
    parser.add_argument("--log", action="store_true", help="a logarithmic vertical axis")
    parser.add_argument(
        "--width", type=WholeNumber(1), help="columns; by default those of the terminal"
    )


def _plot(options: Namespace) -> int:
    lines: list[tuple[str, str, Points]] = []
    for text in options.run:
        storage = find_run(text, pieces=True)
        with damage_named(f"what {storage.uri} records"):
            records = RunRecords(storage)
            points = list(_reported(records, options.metric))
            if points:
                points = [*_of_parents(storage, records, options.metric), *points]
            else:
                points = list(_logged(records, options.metric))
            if not points:
                raise LockstepError(
                    f"{run_name(records.run)} has no number {options.metric!r}; it has "
                    f"{', '.join(_names(records)) or 'no metric yet'}."
                )
            lines.append(
                (f"{records.run['experiment_name']} {run_name(records.run)}", storage.uri, points)
            )
    if options.json:
        print_json(
            [
                {"run": name, "path": path, "metric": options.metric, "points": points}
                for name, path, points in lines
            ]
        )
        return 0
    width = options.width or shutil.get_terminal_size().columns
    for row in chart([points for _, _, points in lines], max(width, 30), _HEIGHT, log=options.log):
        print(row)
    for number, (name, _, points) in enumerate(lines):
        last = format_value(points[-1][1])
        value = f"{clean(options.metric)}={last} at {points[-1][0]:g}"
        print(f"{_MARKS[number % len(_MARKS)]} {clean(name)}: {value}")
    return 0


def _reported(
    records: RunRecords, metric: str, until: float = math.inf
) -> Iterator[tuple[float, float]]:
    for report in records.reports():
        if report["index"] > until:
            return
        value = look_up(reported_metrics(report), metric)
        if is_number(value):
            yield float(report["iteration"]), float(value)


def _of_parents(storage: Storage, records: RunRecords, metric: str) -> Points:
    """The points of a fork's parents up to where it was forked, as far as they are there."""
    try:
        # A chart of somebody's directory connects to nobody.
        parent = parent_of(storage, records.run, connect=False)
    except FileNotFoundError:
        return []
    if parent is None:
        return []
    theirs = RunRecords(parent)
    until = records.run["parent"]["reports"]
    own = list(_reported(theirs, metric, until))
    return [*_of_parents(parent, theirs, metric), *own]


def _logged(records: RunRecords, metric: str) -> Iterator[tuple[float, float]]:
    count = 0
    for batch in records.logs():
        for row in batch["rows"] if batch["rank"] == 0 else ():
            value = look_up(row["metrics"], metric)
            if is_number(value):
                count += 1
                yield float(count if row["step"] is None else row["step"]), float(value)


def _names(records: RunRecords) -> list[str]:
    found: dict[str, None] = {}
    for report in records.reports():
        found.update(
            dict.fromkeys(k for k, v in flatten(reported_metrics(report)).items() if is_number(v))
        )
    for batch in records.logs():
        for row in batch["rows"]:
            numbers = (key for key, value in flatten(row["metrics"]).items() if is_number(value))
            found.update(dict.fromkeys(numbers))
    return list(found)


def chart(lines: list[Points], width: int, height: int, *, log: bool = False) -> list[str]:
    """The rows of a chart with axes: plain characters, a mark of its own for each line."""
    lines = [[(x, y) for x, y in line if math.isfinite(x) and math.isfinite(y)] for line in lines]
    if log:
        lines = [[(x, math.log10(y)) for x, y in line if y > 0] for line in lines]
    xs, ys = [x for line in lines for x, _ in line], [y for line in lines for _, y in line]
    if not xs:
        return ["(no finite value" + (" above 0)" if log else ")")]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    columns = width - _LABEL - 2
    grid = [[" "] * columns for _ in range(height)]
    for number, line in enumerate(lines):
        previous: int | None = None
        for column, values in sorted(_by_column(line, left, right, columns).items()):
            rows = [_place(value, low, high, height) for value in (min(values), max(values))]
            first, last = rows
            if previous is not None:  # no gap between neighbours
                first, last = min(first, previous), max(last, previous)
            for row in range(first, last + 1):
                grid[height - 1 - row][column] = _MARKS[number % len(_MARKS)]
            previous = _place(values[-1], low, high, height)
    labels = {0: high, height // 2: (low + high) / 2, height - 1: low}
    shown = []
    for number, cells in enumerate(grid):
        value = labels.get(number)
        label = "" if value is None else format_value(10**value if log else float(value))
        shown.append(f"{label[:_LABEL]:>{_LABEL}} |{''.join(cells)}".rstrip())
    start, end = f"{left:g}", f"{right:g}"
    shown.append(" " * _LABEL + " +" + "-" * columns)
    shown.append(" " * (_LABEL + 2) + start + end.rjust(columns - len(start)))
    return shown


def _by_column(line: Points, left: float, right: float, columns: int) -> dict[int, list[float]]:
    """The values in each column, with those on the way from one point to the next."""
    found: dict[int, list[float]] = {}
    before: tuple[int, float] | None = None
    for x, y in line:
        column = _place(x, left, right, columns)
        if before is not None:
            start, value = before
            for between in range(start + 1, column):
                share = (between - start) / (column - start)
                found.setdefault(between, []).append(value * (1 - share) + y * share)
        found.setdefault(column, []).append(y)
        before = column, y
    return found


def _place(value: float, low: float, high: float, cells: int) -> int:
    if high == low:
        return cells // 2 if cells > 1 else 0
    # Halved first: the difference of two floats may be too large for one.
    share = (value / 2 - low / 2) / (high / 2 - low / 2)
    return min(int(share * cells), cells - 1)


COMMAND = Command(
    "plot",
    "a line chart of a metric, of one run or several",
    (
        "lockstep plot -1 loss                    the newest run",
        "lockstep plot -1 -2 val/accuracy         two runs on one chart",
        "lockstep plot mnist loss --log --json    the points, for a script",
    ),
    _arguments,
    _plot,
)
