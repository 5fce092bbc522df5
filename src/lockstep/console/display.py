"""The contract of a display, the choice of one, and the parts that displays share."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

from lockstep.console.report_lines import ReportLines
from lockstep.console.status import Progress, RunStatus
from lockstep.console.text import clean_lines, ranks_label

__all__ = [
    "Display",
    "Level",
    "ProgressDisplay",
    "SilentDisplay",
    "choose_surface",
    "make_display",
    "write_line",
]

Level = Literal["info", "warning", "error"]


class Display(ABC):
    """What one run shows.

    Call order: ``start``, then any method, then ``finish``. A second ``finish`` does nothing.
    ``message`` and ``output`` also work before ``start`` and after ``finish``. The driver always
    calls ``finish``, after exceptions and Ctrl-C as well.

    Threads: the driver's thread calls ``start``, ``update``, ``report``, ``refresh`` and
    ``finish``; any thread may call ``message``, ``output`` and ``labelled``.

    A display never raises because of the text or the stream: characters that a stream cannot
    encode are replaced, and nothing more is written to a closed stream.

    Attributes:
        interval_s: how often the driver calls ``refresh``; None: never.
    """

    interval_s: float | None = None

    @abstractmethod
    def start(self, status: RunStatus) -> None:
        """Show that the run starts."""

    @abstractmethod
    def update(self, status: RunStatus) -> None:
        """Keep the newest status. Must be cheap: the driver may call it 5,000 times a second."""

    @abstractmethod
    def refresh(self) -> None:
        """Draw the newest status, if it has changed or a second has passed."""

    @abstractmethod
    def message(self, text: str, level: Level = "info") -> None:
        """Show a line from lockstep itself."""

    def output(self, ranks: tuple[int, ...], world_size: int, line: str) -> None:
        """Show a line that the workers ``ranks`` of ``world_size`` wrote."""
        self.labelled(ranks_label(ranks, world_size), line)

    @abstractmethod
    def labelled(self, label: str, line: str) -> None:
        """Show a line of output behind a label that names its writer."""

    @abstractmethod
    def report(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Show a report on its own line, with ``verbose=2``; about ten lines a second at most."""

    def pause(self) -> None:  # noqa: B027  # optional
        """Redraw nothing until ``resume``: a debugger uses the terminal. Lines are still shown."""

    def resume(self) -> None:  # noqa: B027  # optional
        """Redraw again."""

    @abstractmethod
    def finish(self, status: RunStatus) -> None:
        """Draw the last status and restore the terminal."""


class ProgressDisplay(Display):
    """What the displays with a status share: the clock, the newest status, lines for reports.

    ``_progress`` is None before ``start`` and after ``finish``.
    """

    def __init__(
        self, *, every_report: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._report_lines = ReportLines() if every_report else None
        self._progress: Progress | None = None

    def update(self, status: RunStatus) -> None:
        """Keep the newest status."""
        if self._progress is not None:
            self._progress.status = status

    def report(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Show a line, with ``verbose=2``."""
        if self._report_lines is not None:
            self._show_reports(self._report_lines.feed(index, metrics, self._clock()))

    def _flush_reports(self, now: float) -> None:
        if self._report_lines is not None:
            self._show_reports(self._report_lines.flush(now))

    @abstractmethod
    def _show_reports(self, lines: list[str]) -> None:
        """Show lines about reports."""


class SilentDisplay(Display):
    """``verbose=0``: shows only warnings and errors, on stderr."""

    def start(self, status: RunStatus) -> None:
        """Show nothing."""

    def update(self, status: RunStatus) -> None:
        """Show nothing."""

    def refresh(self) -> None:
        """Show nothing."""

    def message(self, text: str, level: Level = "info") -> None:
        """Show warnings and errors."""
        if level != "info":
            write_line(clean_lines(text), error=True)

    def labelled(self, label: str, line: str) -> None:
        """Show nothing: the line is in the rank's log file."""

    def report(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Show nothing."""

    def finish(self, status: RunStatus) -> None:
        """Show nothing."""


def write_line(text: str, *, error: bool = False) -> None:
    """Write a line to the current stdout or stderr in one call; a broken stream raises nothing."""
    stream = sys.stderr if error else sys.stdout
    if stream is None:
        return
    with suppress(OSError, ValueError):  # a closed pipe or terminal must not end a training run
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()


def make_display(verbose: int, *, interactive_function: bool = False) -> Display:
    """Return the display that suits this process's stdout.

    Args:
        verbose: 0 shows nothing, 1 the run, 2 a line for each report as well.
        interactive_function: the training function runs in this process and may open a debugger,
            so nothing may redraw the screen.
    """
    surface = choose_surface(verbose, interactive_function=interactive_function)
    every_report = verbose >= 2
    if surface == "none":
        return SilentDisplay()
    if surface == "notebook":
        from lockstep.console.notebook import NotebookDisplay

        return NotebookDisplay(every_report=every_report)
    if surface == "terminal":
        from lockstep.console.terminal import TerminalDisplay

        return TerminalDisplay(every_report=every_report)
    from lockstep.console.plain import PlainDisplay

    return PlainDisplay(every_report=every_report)


def choose_surface(
    verbose: int, *, interactive_function: bool
) -> Literal["none", "notebook", "terminal", "plain"]:
    """Return what stdout can show; the arguments are those of ``make_display``."""
    if verbose == 0:
        return "none"
    if not interactive_function:
        if _in_notebook():
            return "notebook"
        if _on_capable_terminal():
            return "terminal"
    return "plain"


def _in_notebook() -> bool:
    # A notebook kernel has imported IPython before any cell runs.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def _on_capable_terminal() -> bool:
    stdout = sys.stdout
    try:
        if stdout is None or not stdout.isatty():
            return False
        encoding = stdout.encoding or ""
    except (AttributeError, ValueError):
        return False
    if encoding.lower().replace("-", "") != "utf8":
        return False
    from rich.console import Console

    return not Console(file=stdout).is_dumb_terminal
