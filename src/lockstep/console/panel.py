"""The layout and colours of the terminal's panel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lockstep.console.dashboard import dashboard_command
from lockstep.console.status import Progress, RunStatus
from lockstep.console.text import (
    MAX_METRICS,
    best_text,
    clean,
    facts,
    format_metrics,
    shorten,
    times_text,
)

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions, RenderableType
    from rich.text import Text

__all__ = ["framed", "headline", "path_room", "render_panel"]

_STATES = {
    "starting": ("○", "cyan"),
    "running": ("●", "green"),
    "saving": ("●", "blue"),
    "stopping": ("●", "yellow"),
    "restarting": ("↻", "yellow"),
    "finished": ("✓", "green"),
    "failed": ("✗", "red"),
    "interrupted": ("■", "yellow"),
    "preempted": ("■", "yellow"),
}
"""state → symbol and colour."""

_WIDTH = 76
_WIDEST = 120
_LABEL = len("checkpoint")
_MAX_METRIC = 28
# Borders, headline, two gaps, best, time, checkpoint, directory, how to watch, the cursor's line.
_OTHER_ROWS = 12


def render_panel(
    progress: Progress, size: ConsoleDimensions, *, last: bool = False
) -> RenderableType:
    """Return the panel for a terminal of this size; the last panel has no line for the cursor."""
    from rich.table import Table
    from rich.text import Text

    status = progress.status
    path = clean(status.path)
    width = min(size.width, max(_WIDTH, min(len(path) + _LABEL + 8, _WIDEST)))

    parts = facts(progress)
    roomy = sum(len(part) + 5 for part in parts) + len(status.state) + 2 <= width - 6

    places = Table.grid(padding=(0, 2))
    places.add_column(style="dim", no_wrap=True, min_width=_LABEL)
    places.add_column(overflow="fold")
    none = "none" if status.over else "none yet"
    checkpoint = Text(clean(status.checkpoint)) if status.checkpoint else Text(none, style="dim")
    if status.best_value is not None:
        metric = shorten(clean(status.best_value[0]), _MAX_METRIC)
        places.add_row("best", Text(f"{metric} {best_text(status.best_value)}"))
    if status.times is not None:
        places.add_row("time", Text(times_text(status.times)))
    places.add_row("checkpoint", checkpoint)
    room = max(width - _LABEL - 8, 1)
    # A path that is broken in the middle cannot be copied: the display prints it in a line before.
    places.add_row("run", Text(path if len(path) <= room else "…" + path[len(path) - room + 1 :]))

    if not status.over:
        # A path that does not fit is beside it already, and in the first line above the panel.
        command = dashboard_command(path)
        places.add_row("watch", Text(command if len(command) <= room else "lockstep ui"))

    folded = (len(checkpoint) - 1) // room
    rows = max(size.height - _OTHER_ROWS - folded, 1)
    body: list[RenderableType] = [headline(status, parts, "  ·  " if roomy else " · "), Text("")]
    body += _metrics(progress, width - 6, rows)
    body += [Text(""), places]
    return framed(body, status, width, last=last)


def path_room(columns: int) -> int:
    """How long a path may be to be shown in full on a terminal of this width."""
    return min(columns, _WIDEST) - _LABEL - 8


def headline(status: RunStatus, parts: Iterable[str], separator: str) -> Text:
    """Return one line: the state with its symbol, and the short facts about the run."""
    from rich.text import Text

    symbol, colour = _symbol(status)
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{symbol} {status.state}", style=f"bold {colour}")
    for part in parts:
        line.append(separator, style="dim")
        line.append(part)
    return line


def framed(
    body: Sequence[RenderableType], status: RunStatus, width: int, *, last: bool
) -> RenderableType:
    """Return a box in the state's colour, titled with the name, and a line for the cursor below."""
    from rich.box import ROUNDED
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    panel = Panel(
        Group(*body),
        box=ROUNDED,
        title=Text(clean(status.name), style="bold"),
        title_align="left",
        border_style=f"dim {_symbol(status)[1]}",
        padding=(0, 2),
        width=width,
    )
    return panel if last else Group(panel, Text(""))


def _symbol(status: RunStatus) -> tuple[str, str]:
    return _STATES.get(status.state, ("●", "white"))


def _metrics(progress: Progress, width: int, rows: int) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    shown, left = format_metrics(progress.status.metrics, MAX_METRICS)
    if not shown:
        return [Text("no report yet" if not progress.status.reports else "no metrics", style="dim")]
    key_width = max(_LABEL, *(len(key) for key, _ in shown))
    # Wide enough for any float, so that columns do not move while values change.
    value_width = max(11, *(len(value) for _, value in shown))
    columns = max(1, min((width + 3) // (key_width + value_width + 5), -(-len(shown) // 3)))
    height = -(-len(shown) // columns)
    if height + bool(left) > rows:
        height = max(rows - 1, 1)
    left += max(len(shown) - columns * height, 0)

    grid = Table.grid(padding=0)
    for column in range(columns):
        grid.add_column(style="dim", no_wrap=True, overflow="ellipsis", min_width=key_width + 2)
        gap = 3 if column < columns - 1 else 0
        grid.add_column(no_wrap=True, overflow="ellipsis", min_width=value_width + gap)
    for row in range(height):
        cells: list[Text] = []
        for column in range(columns):
            index = row + column * height
            key, value = shown[index] if index < len(shown) else ("", "")
            cells += [Text(key), Text(value, style="bold")]
        grid.add_row(*cells)
    parts: list[RenderableType] = [grid]
    if left:
        parts.append(Text(f"… and {left:,} more", style="dim"))
    return parts
