"""The display of a notebook: one table under the cell, updated in place."""

from __future__ import annotations

import html
import math
import threading
from typing import Any

from lockstep.console.dashboard import dashboard_address, dashboard_command
from lockstep.console.display import Level, ProgressDisplay, write_line
from lockstep.console.status import Progress, RunStatus
from lockstep.console.text import (
    best_text,
    clean,
    clean_lines,
    facts,
    format_metrics,
    times_text,
    without_controls,
)

__all__ = ["NotebookDisplay"]

_COLOURS = {
    "starting": "#0aa",
    "running": "#2a2",
    "saving": "#48f",
    "finished": "#2a2",
    "failed": "#d33",
}


class NotebookDisplay(ProgressDisplay):
    """Updates a table (HTML and text) at most four times a second; workers' lines are printed."""

    interval_s = 0.25

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._handle: Any = None
        self._address: str | None = None
        self._drawn: RunStatus | None = None
        self._drawn_at = -math.inf
        self._lock = threading.Lock()

    def start(self, status: RunStatus) -> None:
        """Show the table under the running cell."""
        import IPython.display

        display: Any = IPython.display.display
        self._progress = Progress(status, self._clock)
        self._address = dashboard_address(status.path)
        self._handle = display(self._bundle(), raw=True, display_id=True)

    def refresh(self) -> None:
        """Update the table, if anything is new."""
        if self._progress is None:
            return
        now = self._clock()
        self._flush_reports(now)
        wait = 0.25 if self._progress.status is not self._drawn else 1.0
        if now >= self._drawn_at + wait:
            self._handle.update(self._bundle(), raw=True)

    def message(self, text: str, level: Level = "info") -> None:
        """Print the line; warnings and errors go to stderr."""
        self._print([clean_lines(text)], error=level != "info")

    def labelled(self, label: str, line: str) -> None:
        """Print the line behind its label."""
        self._print([f"{label} {without_controls(line)}"])

    def finish(self, status: RunStatus) -> None:
        """Update the table for the last time."""
        if self._progress is None:
            return
        self._flush_reports(math.inf)
        self._progress.status = status
        self._handle.update(self._bundle(), raw=True)
        self._progress = None

    def _show_reports(self, lines: list[str]) -> None:
        self._print(lines)

    def _print(self, lines: list[str], *, error: bool = False) -> None:
        with self._lock:
            for line in lines:
                write_line(line, error=error)

    def _bundle(self) -> dict[str, str]:
        assert self._progress is not None
        status = self._progress.status
        self._drawn, self._drawn_at = status, self._clock()
        about, rows = self._facts(self._progress)
        # The last table is what a notebook saves: without the link, whose address has a token.
        address = None if status.over else self._address
        return {
            "text/plain": _plain_text(clean(status.name), status.state, about, rows),
            "text/html": _html(clean(status.name), status.state, about, rows, address),
        }

    def _facts(self, progress: Progress) -> tuple[str, list[tuple[str, str]]]:
        status = progress.status
        about = " · ".join(facts(progress))
        shown, left = format_metrics(status.metrics)
        rows = shown + ([("…", f"and {left:,} more")] if left else [])
        if status.best_value is not None:
            rows.append(("best", f"{clean(status.best_value[0])} {best_text(status.best_value)}"))
        if status.times is not None:
            rows.append(("time", times_text(status.times)))
        none = "none" if status.over else "none yet"
        rows.append(("checkpoint", clean(status.checkpoint) if status.checkpoint else none))
        rows.append(("run", clean(status.path)))
        if not status.over:
            rows.append(("watch", dashboard_command(clean(status.path))))
        return about, rows


def _plain_text(name: str, state: str, about: str, rows: list[tuple[str, str]]) -> str:
    width = max(len(label) for label, _ in rows)
    lines = [name, f"{state} · {about}"]
    return "\n".join(lines + [f"  {label:<{width}}  {value}" for label, value in rows])


def _html(
    name: str, state: str, about: str, rows: list[tuple[str, str]], address: str | None
) -> str:
    colour = _COLOURS.get(state, "#c90")
    cell = "padding:1px 16px 1px 0;text-align:left;background:none"
    body = "".join(
        f'<tr style="background:none"><td style="{cell};opacity:.65">{html.escape(label)}</td>'
        f'<td style="{cell};font-family:monospace">{html.escape(value)}</td></tr>'
        for label, value in rows
    )
    link = ""
    if address is not None:  # with a token: for nobody else
        rel = 'target="_blank" rel="noopener noreferrer"'
        link = f' · <a href="{html.escape(address)}" {rel}>dashboard</a>'
    what = f'<b style="color:{colour}">{html.escape(state)}</b> · {html.escape(about)}{link}'
    return (
        f'<div style="border-left:3px solid {colour};padding:2px 12px">'
        f"<div><b>{html.escape(name)}</b></div>"
        f"<div>{what}</div>"
        f'<table style="border:none;margin:4px 0 0 0">{body}</table></div>'
    )
