"""The contract of a display, the choice of one, and the one that shows nothing."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from lockstep.console.status import RunStatus
from lockstep.console.text import ranks_label

__all__ = [
    "Display",
    "Level",
    "SilentDisplay",
    "choose_surface",
    "make_display",
    "write_line",
]

Level = Literal["info", "warning", "error"]


class Display(ABC):
    """What one run shows.

    Call order: ``start``, then anything, then ``finish``; a second ``finish`` does nothing, and
    ``message`` and ``output`` also work before and after. The driver calls ``finish`` on every way
    out, exceptions and Ctrl-C included.

    Threads: ``start``, ``update``, ``report``, ``refresh`` and ``finish`` are called from one
    thread, the driver's; ``message``, ``output`` and ``labelled`` from any.

    A display never raises because of what it shows or of where it shows it: text a stream cannot
    encode is replaced, and a stream that is gone is written to no more.

    Attributes:
        interval_s: how often the driver calls ``refresh``; None if it need not.
    """

    interval_s: float | None = None

    @abstractmethod
    def start(self, status: RunStatus) -> None:
        """The run begins."""

    @abstractmethod
    def update(self, status: RunStatus) -> None:
        """Something changed. Only keeps the reference: it may be called 5,000 times a second."""

    @abstractmethod
    def refresh(self) -> None:
        """Draws the newest status, if it changed or a second has passed."""

    @abstractmethod
    def message(self, text: str, level: Level = "info") -> None:
        """Shows one line of lockstep's own."""

    def output(self, ranks: tuple[int, ...], world_size: int, line: str) -> None:
        """Shows a line that the workers ``ranks`` of ``world_size`` wrote."""
        self.labelled(ranks_label(ranks, world_size), line)

    @abstractmethod
    def labelled(self, label: str, line: str) -> None:
        """Shows a line of somebody's output, after who wrote it."""

    @abstractmethod
    def report(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Shows a report on a line of its own, with ``verbose=2``; about ten a second at most."""

    @abstractmethod
    def finish(self, status: RunStatus, summary: str | None = None) -> None:
        """Draws the last status, leaves the terminal as it was, and prints ``summary`` below."""


class SilentDisplay(Display):
    """``verbose=0``: only warnings and errors, to stderr."""

    def start(self, status: RunStatus) -> None:
        """Shows nothing."""

    def update(self, status: RunStatus) -> None:
        """Shows nothing."""

    def refresh(self) -> None:
        """Shows nothing."""

    def message(self, text: str, level: Level = "info") -> None:
        """Shows warnings and errors."""
        if level != "info":
            write_line(text, error=True)

    def labelled(self, label: str, line: str) -> None:
        """Shows nothing; the line is in the rank's log file."""

    def report(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Shows nothing."""

    def finish(self, status: RunStatus, summary: str | None = None) -> None:
        """Shows nothing."""


def write_line(text: str, *, error: bool = False) -> None:
    """Writes a line to today's stdout or stderr in one piece, and never raises for the stream."""
    stream = sys.stderr if error else sys.stdout
    if stream is None:
        return
    try:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError):
        # A closed pipe or terminal is no reason to end a training run.
        pass


def make_display(verbose: int, *, interactive_function: bool = False) -> Display:
    """The display for where this process's stdout goes.

    Args:
        verbose: 0 nothing, 1 the display, 2 a line for each report as well.
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
        from lockstep.console.live import LiveDisplay

        return LiveDisplay(every_report=every_report)
    from lockstep.console.plain import PlainDisplay

    return PlainDisplay(every_report=every_report)


def choose_surface(
    verbose: int, *, interactive_function: bool
) -> Literal["none", "notebook", "terminal", "plain"]:
    """What there is to draw on; the arguments are those of ``make_display``."""
    if verbose == 0:
        return "none"
    if not interactive_function:
        if _in_notebook():
            return "notebook"
        if _on_capable_terminal():
            return "terminal"
    return "plain"


def _in_notebook() -> bool:
    # A kernel has imported IPython long before anything of ours runs in it.
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
