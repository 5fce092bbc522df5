"""The panel on a terminal, redrawn in place by rich. Workers' lines scroll by above it."""

from __future__ import annotations

import atexit
import contextlib
import math
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lockstep.console.display import Level, ProgressDisplay, write_line
from lockstep.console.panel import path_room
from lockstep.console.plain import PlainDisplay
from lockstep.console.status import Progress, RunStatus
from lockstep.console.text import clean, clean_lines, encodable, without_controls

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

__all__ = ["TerminalDisplay"]

_LEVEL_STYLES = {"info": "", "warning": "yellow", "error": "red"}
_MAX_BUFFERED_LINES = 1000

_terminal = threading.Lock()
"""Held by the display that draws the panel: a terminal has room for one."""


class _NewestPanel:
    """Draws the newest panel whenever rich redraws, also when a line is printed above it."""

    panel: RenderableType = ""

    def __rich__(self) -> RenderableType:
        return self.panel


class _Lines:
    """Lines to print above the panel, unwrapped. Cheap: thousands may come in a second."""

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


class TerminalDisplay(ProgressDisplay):
    """One panel, redrawn in place at most five times a second.

    Lines are buffered and printed above the panel with the next redraw: a thousand lines of a
    worker cost one redraw. What the driver's own code prints appears above the panel, too. While
    another run of this process shows its panel, this display writes plain lines above that panel.
    """

    interval_s = 0.2
    _plain_kind: type[PlainDisplay] = PlainDisplay

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._plain: PlainDisplay | None = None  # used while another run has the panel
        self._live: Live | None = None
        self._paused = False
        self._panel = _NewestPanel()
        self._drawn: RunStatus | None = None
        self._drawn_at = -math.inf
        self._lines: list[tuple[str, str | Text]] = []
        self._width = 0
        # Guards the buffered lines and every use of rich: any thread may add lines. Reentrant,
        # because drawing prints the lines, and a broken terminal is closed from within.
        self._lock = threading.RLock()

    def start(self, status: RunStatus) -> None:
        """Draw the panel for the first time."""
        if self._live is not None:
            return
        if not _terminal.acquire(blocking=False):
            self._plain = self._plain_kind(
                every_report=self._report_lines is not None, clock=self._clock
            )
            self._plain.start(status)
            return
        self._progress = Progress(status, self._clock)
        with self._lock:
            console = self._open()
            if len(status.path) > path_room(console.width):
                # In a line of its own, which can be copied: the panel shows its end only.
                self._lines.append(("run  ", clean(status.path)))
            self._draw()
        atexit.register(self._close)

    def _open(self) -> Console:
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False, markup=False, emoji=False)
        # A redirected stderr stays redirected; on the terminal it must not overwrite the panel.
        errors = sys.stderr is not None and sys.stderr.isatty()
        self._live = Live(self._panel, console=console, auto_refresh=False, redirect_stderr=errors)
        with self._closing_on_broken_terminal():
            self._live.start()
            # A killed driver could not show the cursor again, so the cursor is never hidden.
            console.show_cursor(True)
        return console

    def pause(self) -> None:
        """Remove the panel."""
        with self._lock:
            if self._live is not None:
                self._paused = True
                self._print_lines()
                self._live.transient = True
                self._stop()

    def resume(self) -> None:
        """Draw the panel again, unless another run has the terminal now."""
        with self._lock:
            if self._paused and _terminal.acquire(blocking=False):
                self._open()
                self._draw()
            self._paused = False

    def update(self, status: RunStatus) -> None:
        """Keep the newest status."""
        if self._plain is not None:
            self._plain.update(status)
        else:
            super().update(status)

    def refresh(self) -> None:
        """Print the buffered lines and redraw the panel, if anything is new."""
        if self._plain is not None:
            self._plain.refresh()
        if self._progress is None:
            return
        now = self._clock()
        self._flush_reports(now)
        # An unchanged panel is redrawn once a second, too: the elapsed time grows.
        changed = self._progress.status is not self._drawn or bool(self._lines)
        if changed or now >= self._drawn_at + 1:
            with self._lock:
                self._draw()

    def message(self, text: str, level: Level = "info") -> None:
        """Print the line above the panel at once."""
        if self._plain is not None:
            self._plain.message(text, level)
            return
        with self._lock:
            if self._live is None:
                write_line(clean_lines(text), error=level != "info")
                return
            from rich.text import Text

            line = Text(clean_lines(text))
            line.stylize(_LEVEL_STYLES[level])  # as a span: Text(style=…) is not rendered
            self._lines.append(("", line))
            self._print_lines()

    def labelled(self, label: str, line: str) -> None:
        """Print the line, with its colours, above the panel with the next redraw."""
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
        """Print a line above the panel, with ``verbose=2``."""
        if self._plain is not None:
            self._plain.report(index, metrics)
        else:
            super().report(index, metrics)

    def finish(self, status: RunStatus) -> None:
        """Draw the panel for the last time."""
        if self._plain is not None:
            self._plain.finish(status)
        if self._progress is None:
            return
        self._flush_reports(math.inf)
        self._progress.status = status
        self._close()
        self._progress = None

    def _show_reports(self, lines: list[str]) -> None:
        for line in lines:
            self._add(line, "")

    def _add(self, label: str, line: str | Text) -> None:
        with self._lock:
            if self._paused:
                write_line(f"{label}{line}")
                return
            self._lines.append((label, line))
            if len(self._lines) >= _MAX_BUFFERED_LINES:
                self._print_lines()

    def _print_lines(self) -> None:
        lines, self._lines = self._lines, []
        if self._live is None or not lines:
            return
        with self._closing_on_broken_terminal():
            self._live.console.print(_Lines(lines), soft_wrap=True)

    def _draw(self, *, last: bool = False) -> None:
        if self._live is None or self._progress is None:
            return
        self._drawn, self._drawn_at = self._progress.status, self._clock()
        self._clear_after_shrinking()
        if self._live is None:
            return
        self._panel.panel = self._render(self._progress, self._live.console.size, last=last)
        if self._lines:
            self._print_lines()  # printing above the panel redraws the panel
        else:
            with self._closing_on_broken_terminal():
                self._live.refresh()

    def _clear_after_shrinking(self) -> None:
        """Clear the screen if the window is narrower: the old panel may be wrapped by now.

        Terminals differ in that, so nobody knows where the panel begins. What scrolled out stays.
        """
        assert self._live is not None
        console = self._live.console
        before, self._width = self._width, console.width
        if console.width >= before:
            return
        from rich.live import Live

        with self._closing_on_broken_terminal():
            redirected = self._live._redirect_stderr
            self._live.stop()
            console.clear()
            self._live = Live(
                self._panel, console=console, auto_refresh=False, redirect_stderr=redirected
            )
            self._live.start()
            console.show_cursor(True)

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
                # rich redirects both: an unfinished line would be lost with the redirection.
                sys.stdout.flush()
                sys.stderr.flush()
            with contextlib.suppress(OSError, ValueError):
                live.stop()
        finally:
            _terminal.release()

    @contextlib.contextmanager
    def _closing_on_broken_terminal(self) -> Iterator[None]:
        # A closed terminal must not end a training run.
        try:
            yield
        except (OSError, ValueError):
            self._stop()
