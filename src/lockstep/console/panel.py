"""The panel's layout: what stands where, in which colour. The only file that knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lockstep.console.status import Progress, RunStatus
from lockstep.console.text import MAX_METRICS, clean, facts, format_metrics

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions, RenderableType
    from rich.text import Text

__all__ = ["framed", "headline", "render_panel"]

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
"""state → its sign and its colour."""

_WIDTH = 76
_LABEL = len("checkpoint")
# Borders, headline, two gaps, checkpoint, run directory, and the line the cursor rests on.
_OTHER_ROWS = 9


def render_panel(
    progress: Progress, size: ConsoleDimensions, *, last: bool = False
) -> RenderableType:
    """The panel for a terminal of this size; the last one leaves no line for the cursor."""
    from rich.table import Table
    from rich.text import Text

    status = progress.status
    path = clean(status.path)
    width = min(size.width, max(_WIDTH, min(len(path) + _LABEL + 8, 120)))

    told = facts(status, progress.elapsed(), progress.rate())
    roomy = sum(len(fact) + 5 for fact in told) + len(status.state) + 2 <= width - 6

    places = Table.grid(padding=(0, 2))
    places.add_column(style="dim", no_wrap=True, min_width=_LABEL)
    places.add_column(overflow="fold")
    none = "none" if status.over else "none yet"
    checkpoint = Text(clean(status.checkpoint)) if status.checkpoint else Text(none, style="dim")
    places.add_row("checkpoint", checkpoint)
    places.add_row("run", Text(path))

    room = max(width - _LABEL - 8, 1)
    folded = (len(path) - 1) // room + (len(checkpoint) - 1) // room
    rows = max(size.height - _OTHER_ROWS - folded, 1)
    body: list[RenderableType] = [headline(status, told, "  ·  " if roomy else " · "), Text("")]
    body += _metrics(progress, width - 6, rows)
    body += [Text(""), places]
    return framed(body, status, width, last=last)


def headline(status: RunStatus, told: Iterable[str], between: str) -> Text:
    """The state, with its sign, and what else there is to say in a line."""
    from rich.text import Text

    sign, colour = _sign(status)
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{sign} {status.state}", style=f"bold {colour}")
    for fact in told:
        line.append(between, style="dim")
        line.append(fact)
    return line


def framed(
    body: Sequence[RenderableType], status: RunStatus, width: int, *, last: bool
) -> RenderableType:
    """A box in the colour of the state, with the name on it, and below it the cursor's line."""
    from rich.box import ROUNDED
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    panel = Panel(
        Group(*body),
        box=ROUNDED,
        title=Text(clean(status.name), style="bold"),
        title_align="left",
        border_style=f"dim {_sign(status)[1]}",
        padding=(0, 2),
        width=width,
    )
    return panel if last else Group(panel, Text(""))


def _sign(status: RunStatus) -> tuple[str, str]:
    return _STATES.get(status.state, ("●", "white"))


def _metrics(progress: Progress, width: int, rows: int) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    shown, left = format_metrics(progress.status.metrics, MAX_METRICS)
    if not shown:
        return [Text("no report yet" if not progress.status.reports else "no metrics", style="dim")]
    key_width = max(_LABEL, *(len(key) for key, _ in shown))
    # Room for any float, so that columns stay put while values change.
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
