"""Am I waiting for data? What was handed out, and the time on either side of the hand-over."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DataStats"]


@dataclass
class DataStats:
    """What was handed to a user, over all passes.

    Attributes:
        rows, batches: handed out.
        waited_s: how long the user waited for them.
        used_s: how long the user took between one and the next.
    """

    rows: int = 0
    batches: int = 0
    waited_s: float = 0.0
    used_s: float = 0.0

    def add(self, rows: int, *, waited: float, used: float) -> None:
        """One more batch."""
        self.rows += rows
        self.batches += 1
        self.waited_s += waited
        self.used_s += used

    @property
    def wait_share(self) -> float:
        """The share of the time that was spent waiting, 0 to 1."""
        total = self.waited_s + self.used_s
        return self.waited_s / total if total else 0.0

    def __str__(self) -> str:
        return (
            f"{self.rows} rows in {self.batches} batches; waited {self.waited_s:.3f} s for data, "
            f"used it for {self.used_s:.3f} s ({self.wait_share:.0%} waiting)"
        )
