"""The displays of an experiment with many trials: a table redrawn in place, or plain lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockstep.console.dashboard import dashboard_command
from lockstep.console.display import Display, SilentDisplay, choose_surface, write_line
from lockstep.console.notebook import NotebookDisplay
from lockstep.console.panel import framed, headline
from lockstep.console.plain import PlainDisplay
from lockstep.console.status import Progress, RunStatus
from lockstep.console.terminal import TerminalDisplay
from lockstep.console.text import (
    clean,
    format_elapsed,
    format_metrics,
    format_rate,
    metrics_line,
    shorten,
)

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions, RenderableType
    from rich.table import Table

__all__ = ["ExperimentStatus", "TrialLine", "make_experiment_display"]

_WIDTH = 100
_COLUMNS = 4
_OTHER_ROWS = 10
_NAME = 20
_PARAMETERS = 44


@dataclass(frozen=True, slots=True)
class TrialLine:
    """One trial in the table."""

    name: str
    status: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    iteration: int


@dataclass(frozen=True, slots=True)
class ExperimentStatus(RunStatus):
    """An experiment's state at one instant.

    Attributes:
        counts: trial status → number of trials.
        total: how many trials there will be; None if unknown.
        running: the running trials.
        best: the best trial so far.
        objective: what ``best`` is judged by: ``"min loss"``.
        budget_s: how long the experiment may take.
        resources: the resources in use: ``"2/2 CPUs"``.
        note: a line from the scheduler.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    total: int | None = None
    running: tuple[TrialLine, ...] = ()
    best: TrialLine | None = None
    objective: str = ""
    budget_s: float | None = None
    resources: str = ""
    note: str = ""


def make_experiment_display(verbose: int, *, interactive_function: bool = False) -> Display:
    """Return the display that suits this process's stdout; see ``make_display``."""
    surface = choose_surface(verbose, interactive_function=interactive_function)
    if surface == "none":
        return SilentDisplay()
    kinds: dict[str, type[PlainDisplay | TerminalDisplay | NotebookDisplay]] = {
        "notebook": _NotebookTable,
        "terminal": _LiveTable,
        "plain": _PlainLines,
    }
    return kinds[surface](every_report=verbose >= 2)


def _status(progress: Progress) -> ExperimentStatus:
    status = progress.status
    assert isinstance(status, ExperimentStatus)
    return status


def _facts(progress: Progress) -> list[str]:
    """The short facts in one line: trials by status, elapsed time, budget, resources."""
    status = _status(progress)
    shown = {"RUNNING": "running", "PENDING": "pending", "PAUSED": "paused", "ERROR": "failed"}
    done = status.counts.get("TERMINATED", 0) + status.counts.get("ERROR", 0)
    total = "" if status.total is None else f"/{status.total:,}"
    parts = [f"{done:,}{total} trials"]
    parts += [f"{n:,} {name}" for key, name in shown.items() if (n := status.counts.get(key, 0))]
    elapsed = format_elapsed(progress.elapsed(), tenths=status.over)
    if status.budget_s is not None:
        elapsed += f" of {format_elapsed(status.budget_s)}"
    rate = progress.rate()
    if status.total and 0 < done < status.total and not status.over and not status.budget_s:
        left = progress.elapsed() / done * (status.total - done)
        elapsed += f", ~{format_elapsed(left)} left"
        rate = None  # the line is short, and the time left says more
    parts.append(elapsed)
    if rate and not status.over:
        parts.append(f"{format_rate(rate)} reports")
    if status.resources and not status.over:
        parts.append(status.resources)
    return parts


def _describe(line: TrialLine) -> str:
    about = f"{clean(line.name)} {metrics_line(line.metrics)}".strip()
    if line.parameters:
        about += f" ({metrics_line(line.parameters)})"
    return about


class _PlainLines(PlainDisplay):
    """Writes a line at the start, at intervals, and at the end."""

    def start(self, status: RunStatus) -> None:
        self._progress = Progress(status, self._clock)
        self._shown = status
        write_line(f"[lockstep] {clean(status.name)}: experiment directory {clean(status.path)}")

    def _line(self, progress: Progress) -> str:
        status = _status(progress)
        line = " · ".join([status.state, *_facts(progress)])
        if status.best is not None:
            line += f" · best ({status.objective}): {_describe(status.best)}"
        return line


class _NotebookTable(NotebookDisplay):
    def _facts(self, progress: Progress) -> tuple[str, list[tuple[str, str]]]:
        status = _status(progress)
        rows = [(clean(line.name), metrics_line(line.metrics)) for line in status.running[:12]]
        if status.best is not None:
            rows.append((f"best ({status.objective})", _describe(status.best)))
        rows.append(("experiment", clean(status.path)))
        if not status.over:
            rows.append(("watch", dashboard_command(clean(status.path))))
        return " · ".join(_facts(progress)), rows


class _LiveTable(TerminalDisplay):
    _plain_kind = _PlainLines

    def _render(self, progress: Progress, size: ConsoleDimensions, *, last: bool) -> RenderableType:
        from rich.text import Text

        status = _status(progress)
        width = min(size.width, max(_WIDTH, min(len(status.path) + 18, 140)))
        body: list[RenderableType] = [headline(status, _facts(progress), " · ")]
        rows = max(size.height - _OTHER_ROWS, 1)
        if status.running and not last:
            body += [Text(""), _table(status.running, rows)]
        body.append(Text(""))
        if status.best is not None:
            best = Text(no_wrap=True, overflow="ellipsis")
            best.append(f"best ({status.objective})  ", style="dim")
            best.append(_describe(status.best), style="bold")
            body.append(best)
        if status.note and not last:
            body.append(Text(clean(status.note), style="dim", no_wrap=True, overflow="ellipsis"))
        place = Text(overflow="fold")
        place.append("experiment  ", style="dim")
        place.append(clean(status.path))
        body.append(place)
        if not last:
            watch = Text(no_wrap=True, overflow="ellipsis")
            watch.append("watch       ", style="dim")
            watch.append(dashboard_command(clean(status.path)))
            body.append(watch)
        return framed(body, status, width, last=last)


def _table(lines: tuple[TrialLine, ...], rows: int) -> Table:
    """Return the running trials with their parameters and newest metrics."""
    from rich.table import Table
    from rich.text import Text

    columns: dict[str, None] = {}
    for line in lines:
        columns.update(dict.fromkeys(key for key, _ in format_metrics(line.metrics)[0]))
    shown = list(columns)[:_COLUMNS]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("trial", "parameters", "reports", *shown):
        table.add_column(Text(heading), no_wrap=True, overflow="ellipsis")
    for line in lines[:rows]:
        values = dict(format_metrics(line.metrics)[0])
        table.add_row(
            Text(shorten(clean(line.name), _NAME)),
            Text(shorten(metrics_line(line.parameters), _PARAMETERS)),
            Text(f"{line.iteration:,}"),
            *(Text(values.get(name, ""), style="bold") for name in shown),
        )
    if len(lines) > rows:
        table.add_row(Text(f"… and {len(lines) - rows:,} more", style="dim"))
    return table
