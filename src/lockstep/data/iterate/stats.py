"""Is training waiting for data? Rows handed out, and the time spent waiting and using them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DataStats"]


@dataclass
class DataStats:
    """Rows handed to the user, over all passes.

    Attributes:
        rows, batches: how many were handed out.
        waited_s: the time the user waited for batches.
        used_s: the time the user spent between batches.
    """

    rows: int = 0
    batches: int = 0
    waited_s: float = 0.0
    used_s: float = 0.0

    def add(self, rows: int, *, waited: float, used: float) -> None:
        """Count a batch."""
        self.rows += rows
        self.batches += 1
        self.waited_s += waited
        self.used_s += used

    @property
    def wait_share(self) -> float:
        """The share of the time spent waiting, 0 to 1."""
        total = self.waited_s + self.used_s
        return self.waited_s / total if total else 0.0

    def __str__(self) -> str:
        return (
            f"{self.rows} rows in {self.batches} batches; waited {self.waited_s:.3f} s for data, "
            f"used it for {self.used_s:.3f} s ({self.wait_share:.0%} waiting)"
        )
