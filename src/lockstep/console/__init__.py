"""What a run shows, on a terminal, in a notebook or in a log file. Nothing is decided here."""

from __future__ import annotations

from lockstep.console.display import Display, SilentDisplay, make_display
from lockstep.console.logs import Line, LineCollapser, LineSplitter
from lockstep.console.status import RunStatus

__all__ = [
    "Display",
    "Line",
    "LineCollapser",
    "LineSplitter",
    "RunStatus",
    "SilentDisplay",
    "make_display",
]
