"""The same facts in a notebook: one table under the cell, updated in place."""

from __future__ import annotations

import html
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.console.display import Display, Level, write_line
from lockstep.console.reports import ReportLines
from lockstep.console.status import Progress, RunStatus
from lockstep.console.text import clean, facts, format_metrics

__all__ = ["NotebookDisplay"]

_COLOURS = {
    "starting": "#0aa",
    "running": "#2a2",
    "saving": "#48f",
    "finished": "#2a2",
    "failed": "#d33",
}


class NotebookDisplay(Display):
    """A table as HTML and as text, at most four times a second. Workers' lines print as usual."""

    interval_s = 0.25

    def __init__(
        self, *, every_report: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._reports = ReportLines() if every_report else None
        self._progress: Progress | None = None
        self._handle: Any = None
        self._drawn: RunStatus | None = None
        self._drawn_at = -math.inf
        self._lock = threading.Lock()

    def start(self, status: RunStatus) -> None:
        """Shows the table for the first time, under the cell that runs."""
        import IPython.display

        display: Any = IPython.display.display
        self._progress = Progress(status, self._clock)
        self._handle = display(self._bundle(), raw=True, display_id=True)

    def update(self, status: RunStatus) -> None:
        """Keeps the reference."""
        if self._progress is not None:
            self._progress.status = status

    def refresh(self) -> None:
        """Updates the table, if there is anything new."""
        if self._progress is None:
            return
        now = self._clock()
        if self._reports is not None:
            self._print(self._reports.flush(now))
        wait = 0.25 if self._progress.status is not self._drawn else 1.0
        if now >= self._drawn_at + wait:
            self._handle.update(self._bundle(), raw=True)

    def message(self, text: str, level: Level = "info") -> None:
        """Prints the line; warnings and errors to stderr."""
        self._print([text], error=level != "info")

    def labelled(self, label: str, line: str) -> None:
        """Prints the line after who wrote it."""
        self._print([f"{label} {line}"])

    def report(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Prints a line, with ``verbose=2``."""
        if self._reports is not None:
            self._print(self._reports.feed(index, metrics, self._clock()))

    def finish(self, status: RunStatus, summary: str | None = None) -> None:
        """Updates the table for the last time and prints the summary."""
        if self._progress is None:
            return
        if self._reports is not None:
            self._print(self._reports.flush(math.inf))
        self._progress.status = status
        self._handle.update(self._bundle(), raw=True)
        self._progress = None
        if summary:
            self._print([summary])

    def _print(self, lines: list[str], *, error: bool = False) -> None:
        with self._lock:
            for line in lines:
                write_line(line, error=error)

    def _bundle(self) -> dict[str, str]:
        assert self._progress is not None
        status = self._progress.status
        self._drawn, self._drawn_at = status, self._clock()
        about, rows = self._facts(self._progress)
        return {
            "text/plain": _as_text(clean(status.name), status.state, about, rows),
            "text/html": _as_html(clean(status.name), status.state, about, rows),
        }

    def _facts(self, progress: Progress) -> tuple[str, list[tuple[str, str]]]:
        status = progress.status
        about = " · ".join(facts(status, progress.elapsed(), progress.rate()))
        shown, left = format_metrics(status.metrics)
        rows = shown + ([("…", f"and {left:,} more")] if left else [])
        none = "none" if status.over else "none yet"
        rows.append(("checkpoint", clean(status.checkpoint) if status.checkpoint else none))
        rows.append(("run", clean(status.path)))
        return about, rows


def _as_text(name: str, state: str, about: str, rows: list[tuple[str, str]]) -> str:
    width = max(len(label) for label, _ in rows)
    lines = [name, f"{state} · {about}"]
    return "\n".join(lines + [f"  {label:<{width}}  {value}" for label, value in rows])


def _as_html(name: str, state: str, about: str, rows: list[tuple[str, str]]) -> str:
    colour = _COLOURS.get(state, "#c90")
    cell = "padding:1px 16px 1px 0;text-align:left;background:none"
    body = "".join(
        f'<tr style="background:none"><td style="{cell};opacity:.65">{html.escape(label)}</td>'
        f'<td style="{cell};font-family:monospace">{html.escape(value)}</td></tr>'
        for label, value in rows
    )
    return (
        f'<div style="border-left:3px solid {colour};padding:2px 12px">'
        f"<div><b>{html.escape(name)}</b></div>"
        f'<div><b style="color:{colour}">{html.escape(state)}</b> · {html.escape(about)}</div>'
        f'<table style="border:none;margin:4px 0 0 0">{body}</table></div>'
    )
