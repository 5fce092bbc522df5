"""One line for each report (``verbose=2``), at a bounded rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.console.text import metrics_line

__all__ = ["ReportLines"]

_LINES_PER_SECOND = 9


class ReportLines:
    """Shows at most nine reports a second; one more line then counts the reports left out.

    Pure: the clock is passed in.
    """

    def __init__(self) -> None:
        self._second = float("-inf")
        self._shown = 0
        self._skipped = 0

    def feed(self, index: int, metrics: Mapping[str, Any], now: float) -> list[str]:
        """Return the lines to show at this report."""
        lines = self.flush(now)
        if now >= self._second + 1:
            self._second, self._shown = now, 0
        if self._shown >= _LINES_PER_SECOND:
            self._skipped += 1
            return lines
        self._shown += 1
        return [*lines, f"report {index:,}  {metrics_line(metrics)}".rstrip()]

    def flush(self, now: float) -> list[str]:
        """Return the line that counts skipped reports, once their second has passed.

        ``now=math.inf`` returns it at once, at the end of the run.
        """
        if not self._skipped or now < self._second + 1:
            return []
        skipped, self._skipped = self._skipped, 0
        return [f"({skipped:,} more {'report' if skipped == 1 else 'reports'} not shown)"]
