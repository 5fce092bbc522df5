"""The live panel on a terminal, drawn by rich. Workers' lines scroll by above it."""

from __future__ import annotations

import atexit
import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lockstep.console.display import Display, Level, write_line
from lockstep.console.plain import PlainDisplay
from lockstep.console.reports import ReportLines
from lockstep.console.status import Progress, RunStatus
from lockstep.console.text import encodable, without_controls

if TYPE_CHECKING:
    from rich.console import (
        Console,
        ConsoleDimensions,
        ConsoleOptions,
        RenderableType,
        RenderResult,
    )
    from rich.live import Live
    from rich.text import Text

__all__ = ["LiveDisplay"]

_LEVEL_STYLES = {"info": "", "warning": "yellow", "error": "red"}
_MAX_BUFFERED_LINES = 1000

_terminal = threading.Lock()
"""Held by the display that has the panel: there is room for one."""


class _Frame:
    """Stands for the newest panel, so that printing a line above it draws that one at once."""

    panel: RenderableType = ""

    def __rich__(self) -> RenderableType:
        return self.panel


class _Lines:
    """Lines above the panel, as they are: thousands a second may come, and none is wrapped."""

    def __init__(self, lines: list[tuple[str, str | Text]]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment
        from rich.style import Style

        dim = Style(dim=True)
        for label, line in self._lines:
            if label:
                yield Segment(label, dim)
            if isinstance(line, str):
                yield Segment(line)
            else:
                yield from line.render(console)
            yield Segment.line()


class LiveDisplay(Display):
    """One panel that is redrawn in place, five times a second at most.

    Lines are gathered and printed above the panel with the next redraw, so a chatty worker costs
    one redraw for many lines. What the driver's own code prints goes above the panel too. While
    another run of this process has its panel there, this one writes plain lines, above that.
    """

    interval_s = 0.2
    _plain_kind: type[PlainDisplay] = PlainDisplay

    def __init__(
        self, *, every_report: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._every_report = every_report
        self._beside: PlainDisplay | None = None
        self._reports = ReportLines() if every_report else None
        self._progress: Progress | None = None
        self._live: Live | None = None
        self._frame = _Frame()
        self._drawn: RunStatus | None = None
        self._drawn_at = -math.inf
        self._lines: list[tuple[str, str | Text]] = []
        self._lock = threading.RLock()

    def start(self, status: RunStatus) -> None:
        """Draws the panel for the first time."""
        from rich.console import Console
        from rich.live import Live

        if self._live is not None:
            return
        console = Console(highlight=False, markup=False, emoji=False)
        # Errors sent to a file belong there; on the terminal they must not hit the panel.
        errors = sys.stderr is not None and sys.stderr.isatty()
        live = Live(self._frame, console=console, auto_refresh=False, redirect_stderr=errors)
        if not _terminal.acquire(blocking=False):
            self._beside = self._plain_kind(every_report=self._every_report, clock=self._clock)
            self._beside.start(status)
            return
        self._live = live
        self._progress = Progress(status, self._clock)
        with self._lock:
            with self._giving_up_without_terminal():
                self._live.start()
                # A killed driver cannot bring a hidden cursor back, so it never stays hidden.
                console.show_cursor(True)
            self._draw()
        atexit.register(self._close)

    def update(self, status: RunStatus) -> None:
        """Keeps the reference."""
        if self._beside is not None:
            self._beside.update(status)
        if self._progress is not None:
            self._progress.status = status

    def refresh(self) -> None:
        """Prints the lines gathered and redraws the panel, if there is anything new."""
        if self._beside is not None:
            self._beside.refresh()
        if self._progress is None:
            return
        now = self._clock()
        self._add_reports(now)
        changed = self._progress.status is not self._drawn or bool(self._lines)
        if changed or now >= self._drawn_at + 1:
            with self._lock:
                self._draw()

    def message(self, text: str, level: Level = "info") -> None:
        """Prints the line above the panel, at once."""
        if self._beside is not None:
            self._beside.message(text, level)
            return
        with self._lock:
            if self._live is None:
                write_line(text, error=level != "info")
                return
            from rich.text import Text

            line = Text(encodable(text))
            line.stylize(_LEVEL_STYLES[level])  # a span: a style of the text's own is not rendered
            self._lines.append(("", line))
            self._print_lines()

    def labelled(self, label: str, line: str) -> None:
        """Prints the line above the panel with the next redraw; its colours stay."""
        with self._lock:
            if self._live is None:
                write_line(f"{label} {line}")
                return
            line = encodable(without_controls(line))
            if "\x1b" not in line:
                self._add(f"{label} ", line)
                return
            from rich.ansi import AnsiDecoder

            self._add(f"{label} ", AnsiDecoder().decode_line(line))

    def report(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Prints a line above the panel, with ``verbose=2``."""
        if self._beside is not None:
            self._beside.report(index, metrics)
        elif self._reports is not None:
            self._add_plain(self._reports.feed(index, metrics, self._clock()))

    def finish(self, status: RunStatus, summary: str | None = None) -> None:
        """Draws the panel for the last time and prints the summary below it."""
        if self._beside is not None:
            self._beside.finish(status, summary)
        if self._progress is None:
            return
        self._add_reports(math.inf)
        self._progress.status = status
        self._close()
        self._progress = None
        if summary:
            write_line(summary)

    def _add_reports(self, now: float) -> None:
        if self._reports is not None:
            self._add_plain(self._reports.flush(now))

    def _add_plain(self, lines: list[str]) -> None:
        for line in lines:
            self._add(line, "")

    def _add(self, label: str, line: str | Text) -> None:
        with self._lock:
            self._lines.append((label, line))
            if len(self._lines) >= _MAX_BUFFERED_LINES:
                self._print_lines()

    def _print_lines(self) -> None:
        lines, self._lines = self._lines, []
        if self._live is None or not lines:
            return
        with self._giving_up_without_terminal():
            self._live.console.print(_Lines(lines), soft_wrap=True)

    def _draw(self, *, last: bool = False) -> None:
        if self._live is None or self._progress is None:
            return
        self._drawn, self._drawn_at = self._progress.status, self._clock()
        self._frame.panel = self._render(self._progress, self._live.console.size, last=last)
        if self._lines:
            self._print_lines()
        else:
            with self._giving_up_without_terminal():
                self._live.refresh()

    def _render(self, progress: Progress, size: ConsoleDimensions, *, last: bool) -> RenderableType:
        from lockstep.console.panel import render_panel

        return render_panel(progress, size, last=last)

    def _close(self) -> None:
        atexit.unregister(self._close)
        with self._lock:
            if self._live is None:
                return
            try:
                self._draw(last=True)
            finally:
                self._stop()

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        try:
            with contextlib.suppress(OSError, ValueError):
                # Half a line that somebody printed would be lost with the redirection.
                sys.stdout.flush()
                sys.stderr.flush()
            with contextlib.suppress(OSError, ValueError):
                live.stop()
        finally:
            _terminal.release()

    @contextlib.contextmanager
    def _giving_up_without_terminal(self) -> Iterator[None]:
        # A terminal that was closed is no reason to end a training run.
        try:
            yield
        except (OSError, ValueError):
            self._stop()
