"""Plain lines, in a bounded number: for log files, pipes, dumb terminals and debuggers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.console.display import Display, Level, write_line
from lockstep.console.reports import ReportLines
from lockstep.console.status import Progress, RunStatus
from lockstep.console.text import clean, facts, metrics_line

__all__ = ["PlainDisplay"]

_PREFIX = "[lockstep] "


class PlainDisplay(Display):
    """One line at the start, at the first report, now and then, and at the end.

    "Now and then" is every 5 seconds at first and every minute in a long run, only if there is
    something new; a restart or a stop is told at once.
    """

    interval_s = 1.0

    def __init__(
        self, *, every_report: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._reports = ReportLines() if every_report else None
        self._progress: Progress | None = None
        self._told: RunStatus | None = None
        self._told_at = -math.inf

    def start(self, status: RunStatus) -> None:
        """Says what starts and where it will lie."""
        self._progress = Progress(status, self._clock)
        self._told = status
        write_line(f"{_PREFIX}{clean(status.name)}: {status.state}, run directory {status.path}")

    def update(self, status: RunStatus) -> None:
        """Keeps the reference."""
        if self._progress is not None:
            self._progress.status = status

    def refresh(self) -> None:
        """Writes a progress line where one is due."""
        if self._progress is None or self._told is None:
            return
        now = self._clock()
        self._write_reports(now)
        status, told = self._progress.status, self._told
        turned = status.state != told.state and status.state in ("restarting", "stopping")
        if status.attempt != told.attempt or turned:
            self._tell(now)
        elif status.reports != told.reports and self._reports is None:
            gap = min(max(self._progress.elapsed() / 10, 5.0), 60.0)
            if now >= self._told_at + gap:
                self._tell(now)

    def message(self, text: str, level: Level = "info") -> None:
        """Writes the line; warnings and errors to stderr."""
        write_line(_PREFIX + text, error=level != "info")

    def labelled(self, label: str, line: str) -> None:
        """Writes the line, unchanged, after who wrote it."""
        write_line(f"{label} {line}")

    def report(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Writes a line, with ``verbose=2``."""
        if self._reports is not None:
            for line in self._reports.feed(index, metrics, self._clock()):
                write_line(_PREFIX + line)

    def finish(self, status: RunStatus, summary: str | None = None) -> None:
        """Writes the last line and the summary."""
        if self._progress is None:
            return
        self._write_reports(math.inf)
        self._progress.status = status
        self._tell(self._clock())
        self._progress = None
        if summary:
            write_line(summary)

    def _write_reports(self, now: float) -> None:
        if self._reports is not None:
            for line in self._reports.flush(now):
                write_line(_PREFIX + line)

    def _tell(self, now: float) -> None:
        if self._progress is None:
            return
        write_line(_PREFIX + self._line(self._progress))
        self._told, self._told_at = self._progress.status, now

    def _line(self, progress: Progress) -> str:
        status = progress.status
        line = " · ".join([status.state, *facts(status, progress.elapsed(), progress.rate())])
        if status.metrics:
            line += " · " + metrics_line(status.metrics)
        if status.checkpoint:
            line += " · " + clean(status.checkpoint)
        return line
