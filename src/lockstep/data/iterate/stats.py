"""Is training waiting for data? Rows handed out, and the time spent waiting and using them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["DataStats", "StatsText"]


@dataclass
class DataStats:
    """Rows handed to the user, over all passes.

    Attributes:
        rows, batches: how many were handed out.
        waited_s: the time the user waited for batches.
        used_s: the time the user spent between batches.
        stood_s: the part of ``used_s`` in which the user's thread stood still, because Python code
            of ``map_batches`` or ``map`` ran in the same process; estimated (see ``Stood``).
    """

    rows: int = 0
    batches: int = 0
    waited_s: float = 0.0
    used_s: float = 0.0
    stood_s: float = 0.0

    def add(self, rows: int, *, waited: float, used: float, stood: float = 0.0) -> None:
        """Count a batch."""
        self.rows += rows
        self.batches += 1
        self.waited_s += waited
        self.used_s += used
        self.stood_s += stood

    @property
    def lost_s(self) -> float:
        """The time that the data has cost the user: waiting, and standing still."""
        return self.waited_s + self.stood_s

    @property
    def wait_share(self) -> float:
        """The share of the time that the data has cost, 0 to 1."""
        total = self.waited_s + self.used_s
        return self.lost_s / total if total else 0.0

    def __str__(self) -> str:
        stood = f" but stood still for {self.stood_s:.3f} s of it" if self.stood_s >= 0.001 else ""
        return (
            f"{self.rows} rows in {self.batches} batches; waited {self.waited_s:.3f} s for data, "
            f"used it for {self.used_s:.3f} s{stood} ({self.wait_share:.0%} waiting)"
        )


class StatsText(str):
    """The statistics as text, with their values as attributes."""

    _of: DataStats

    def __new__(cls, stats: DataStats, text: str | None = None) -> StatsText:
        """The text as it is now, or the one given; the attributes follow the statistics."""
        now = str(stats) if stats.batches else ""
        made = super().__new__(cls, now if text is None else text)
        made._of = stats
        return made

    def __reduce__(self) -> Any:
        return StatsText, (self._of, str(self))

    def __getattr__(self, name: str) -> Any:
        if name == "_of":  # not set yet
            raise AttributeError(name)
        return getattr(self._of, name)
