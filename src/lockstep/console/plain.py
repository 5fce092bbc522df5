"""Plain lines at a bounded rate, for log files, pipes, dumb terminals and debuggers."""

from __future__ import annotations

import math

from lockstep.console.display import Level, ProgressDisplay, write_line
from lockstep.console.status import Progress, RunStatus
from lockstep.console.text import (
    best_text,
    clean,
    clean_lines,
    facts,
    inert,
    metrics_line,
    without_controls,
)

__all__ = ["PlainDisplay"]

_PREFIX = "[lockstep] "


class PlainDisplay(ProgressDisplay):
    """Writes a line at the start, at the first report, at intervals, and at the end.

    The interval is 5 seconds at first and a minute in a long run. A line is written only if there
    are new reports. A restart or a stop is shown at once.
    """

    interval_s = 1.0
    _shown: RunStatus | None = None
    _shown_at = -math.inf

    def start(self, status: RunStatus) -> None:
        """Write the run's name and directory."""
        self._progress = Progress(status, self._clock)
        self._shown = status
        write_line(
            f"{_PREFIX}{clean(status.name)}: {status.state}, run directory {inert(status.path)}"
        )

    def refresh(self) -> None:
        """Write a progress line, if one is due."""
        if self._progress is None or self._shown is None:
            return
        now = self._clock()
        self._flush_reports(now)
        status, shown = self._progress.status, self._shown
        changed = status.state != shown.state and status.state in ("restarting", "stopping")
        if status.attempt != shown.attempt or changed:
            self._write_progress(self._progress, now)
        elif status.reports != shown.reports and self._report_lines is None:
            gap = min(max(self._progress.elapsed() / 10, 5.0), 60.0)
            if now >= self._shown_at + gap:
                self._write_progress(self._progress, now)

    def message(self, text: str, level: Level = "info") -> None:
        """Write the line; warnings and errors go to stderr."""
        write_line(_PREFIX + clean_lines(text), error=level != "info")

    def labelled(self, label: str, line: str) -> None:
        """Write the line behind its label, without commands for a terminal; colours stay."""
        write_line(f"{label} {without_controls(line)}")

    def finish(self, status: RunStatus) -> None:
        """Write the last line."""
        if self._progress is None:
            return
        self._flush_reports(math.inf)
        self._progress.status = status
        self._write_progress(self._progress, self._clock())
        self._progress = None

    def _show_reports(self, lines: list[str]) -> None:
        for line in lines:
            write_line(_PREFIX + line)

    def _write_progress(self, progress: Progress, now: float) -> None:
        write_line(_PREFIX + self._line(progress))
        self._shown, self._shown_at = progress.status, now

    def _line(self, progress: Progress) -> str:
        status = progress.status
        line = " · ".join([status.state, *facts(progress)])
        if status.metrics:
            line += " · " + metrics_line(status.metrics)
        if status.best_value is not None:
            line += f" · best {clean(status.best_value[0])} {best_text(status.best_value)}"
        if status.checkpoint:
            line += " · " + clean(status.checkpoint)
        return line
