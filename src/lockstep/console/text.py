"""Metrics, times, rates and ranks as short text. Pure functions that every display uses."""

from __future__ import annotations

import re
import reprlib
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep.console.status import Progress

__all__ = [
    "MAX_METRICS",
    "best_text",
    "clean",
    "clean_lines",
    "date",
    "encodable",
    "facts",
    "format_elapsed",
    "format_metrics",
    "format_rate",
    "format_value",
    "inert",
    "metrics_line",
    "plural",
    "ranks_label",
    "shorten",
    "times_text",
    "without_controls",
]

MAX_METRICS = 12
_MAX_KEY = 28
_MAX_VALUE = 24
_MAX_LINE = 160

_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_CONTROLS = re.compile(
    r"(?P<colour>\x1b\[[\d;:]*m)"
    r"|\x1b\[[\x30-\x3f]*[\x20-\x2f]*[\x40-\x7e]?"  # cursor movements and other commands
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links and other strings
    r"|\x1b[\x20-\x2f]*[\x30-\x7e]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)


def clean(text: str) -> str:
    """``text`` on one line, without what a terminal would obey, and without lone surrogates.

    For everything that comes from outside: names, hosts, states, texts of exceptions.
    """
    return inert(encodable(text))


def inert(text: str) -> str:
    """``text`` with spaces for line breaks, control characters and changes of the direction."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        " " if c in _DIRECTIONS or unicodedata.category(c) in ("Cc", "Zl", "Zp") else c
        for c in text
    )


def clean_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(clean, text.split("\n"))) if not text.isprintable() else clean(text)


def encodable(text: str) -> str:
    """``text`` with lone surrogates, which UTF-8 cannot encode, replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def without_controls(line: str) -> str:
    """``line`` without commands that move the cursor or reset the terminal; colours stay."""
    if line.isprintable():
        return line
    return _CONTROLS.sub(lambda found: found["colour"] or "", line)


def shorten(text: str, length: int) -> str:
    """``text`` cut to ``length`` characters; a text that was cut ends with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def format_value(value: object) -> str:
    """Return a metric's value in a few characters: floats have five significant digits."""
    if isinstance(value, float):
        text = f"{value:.5g}"
    elif isinstance(value, str):
        text = value[: _MAX_VALUE + 1]
    else:
        text = reprlib.repr(value)
    return shorten(clean(text), _MAX_VALUE)


def _leaves(metrics: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in metrics.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def format_metrics(
    metrics: Mapping[str, Any], limit: int = MAX_METRICS
) -> tuple[list[tuple[str, str]], int]:
    """Return the first ``limit`` metrics as (key, value) text, and the number of metrics left out.

    Nested keys become ``a/b``. A single metric is never left out: a note about it would be as long.
    """
    leaves = list(_leaves(metrics))
    if len(leaves) == limit + 1:
        limit += 1
    shown = [(shorten(clean(key), _MAX_KEY), format_value(value)) for key, value in leaves[:limit]]
    return shown, max(len(leaves) - limit, 0)


def best_text(best: tuple[str, float, int]) -> str:
    """Return the best value so far: ``0.12345 (report 7)``."""
    _, value, report = best
    return f"{format_value(value)} (report {report:,})"


def times_text(times: tuple[float, float, float]) -> str:
    """Return where the time went so far: ``71% computing, 12% waiting for data``."""
    names = ("computing", "waiting for data", "waiting for other ranks")
    named = zip(times, names, strict=True)
    # What is left is starting, saving and reporting.
    parts = [f"{share:.0%} {name}" for share, name in named if share >= 0.005]
    return ", ".join(parts) or "0% computing"


def metrics_line(metrics: Mapping[str, Any]) -> str:
    """Return the metrics on one line of bounded length: ``loss=0.12345 accuracy=0.98``."""
    shown, left = format_metrics(metrics)
    line = ""
    for count, (key, value) in enumerate(shown):
        item = f"{key}={value} "
        if len(line) + len(item) > _MAX_LINE:
            left += len(shown) - count
            break
        line += item
    return line + f"(+{left} more)" if left else line.rstrip()


def format_elapsed(seconds: float, *, tenths: bool = False) -> str:
    """``0:07``, ``12:34``, ``1:02:03``, ``2d 03:04:05``; with tenths ``7.2s`` under a minute."""
    if tenths and seconds < 60:
        return f"{seconds:.1f}s"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def format_rate(per_second: float) -> str:
    """Return a rate in a readable unit: ``312/s``, ``4.2/min``, ``1.5/h``."""
    for factor, unit in ((1, "s"), (60, "min")):
        if per_second * factor >= 0.95:
            return f"{_three_digits(per_second * factor)}/{unit}"
    return f"{_three_digits(per_second * 3600)}/h"


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def ranks_label(ranks: Sequence[int], world_size: int) -> str:
    """Return the label of a line's writers: ``[rank 0]``, ``[ranks 0-2,5]`` or ``[all ranks]``."""
    if len(ranks) == 1:
        return f"[rank {ranks[0]}]"
    if len(ranks) == world_size:
        return "[all ranks]"
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    spans = (str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"[ranks {','.join(spans)}]"


def plural(count: int, noun: str) -> str:
    """``1 report``, ``2 reports``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def facts(progress: Progress) -> list[str]:
    """Return the facts beside the state: attempt, times, reports, their rate, workers."""
    status, elapsed, rate, left = (
        progress.status,
        progress.elapsed(),
        progress.rate(),
        progress.left(),
    )
    parts = [f"attempt {status.attempt}"] if status.attempt > 1 else []
    times = format_elapsed(elapsed, tenths=status.over)
    parts.append(times if left is None else f"{times}, ~{format_elapsed(left)} left")
    reports = plural(status.reports, "report")
    parts.append(f"{reports}, {format_rate(rate)}" if rate and not status.over else reports)
    parts.append(plural(status.num_workers, "worker") if status.num_workers else "in this process")
    if status.data_wait is not None and status.reports:
        parts.append(f"{status.data_wait:.0%} waiting for data")
    return parts


def date(when: float) -> str:
    """``2026-01-31 12:00:00``, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
