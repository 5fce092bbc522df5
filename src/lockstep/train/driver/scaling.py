"""How many workers: a pure decision."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ScalingPolicy"]


@dataclass(frozen=True)
class ScalingPolicy:
    """Between ``smallest`` and ``largest`` workers; the same number twice is a fixed size."""

    smallest: int
    largest: int

    @property
    def elastic(self) -> bool:
        """Whether the size may change."""
        return self.smallest != self.largest

    def size_for(self, capacity: int) -> int | None:
        """The size to start with where ``capacity`` workers fit; None if too few do.

        A fixed size ignores ``capacity``: a user may want more workers than there are cores.
        """
        if not self.elastic:
            return self.largest
        size = min(self.largest, capacity)
        return size if size >= self.smallest else None

    def grown(self, size: int, capacity: int) -> int | None:
        """The larger size a running group should change to, None to stay."""
        # Never smaller: a running group shrinks only when a worker is lost.
        wanted = self.size_for(capacity)
        return wanted if self.elastic and wanted is not None and wanted > size else None
