"""What a driver adds up while a run runs: a few numbers a report, for the panel and a warning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["LiveTimes"]

STRAGGLER_SHARE = 0.05
"""A rank that costs more than this share of the time is worth a warning."""
OFTEN_LAST = 0.6
"""A rank that is last less often than at this share of the reports is not slower than others."""
STRAGGLER_REPORTS = 20
STRAGGLER_S = 1.0
"""With fewer reports or seconds, a slow rank may be a coincidence."""


class LiveTimes:
    """The times of an attempt so far. ``add`` is called thousands of times a second.

    So it adds up what is simple; averages are computed when they are asked for.

    Attributes:
        seconds: the wall time of the reports so far, without the start.
        straggler: the rank that all others wait for, once it costs enough for a message.
    """

    def __init__(self, size: int) -> None:
        self.seconds = 0.0
        self.straggler: int | None = None
        self._told = False
        self._size = size
        self._reports = 0
        # In seconds of all ranks: busy, and what of it they waited, for data, and for ranks.
        self._busy = self._waited = self._data = self._ranks = 0.0
        # Of the rank that was busy for longest at each report: so long was every rank there.
        self._longest = 0.0
        self._cost = [0.0] * size
        self._last = [0] * size

    def add(
        self,
        busy: Sequence[float],
        waits: Sequence[Mapping[str, float]] | None,
        seconds: float,
    ) -> None:
        """A report: how long each rank was busy since the last one, and what it waited for."""
        longest = max(busy)
        # Before the first report the workers start, which is no rank's fault.
        self.seconds += seconds if self._reports else longest
        self._reports += 1
        self._busy += sum(busy)
        self._longest += longest
        own = busy if waits is None else self._without(busy, waits)
        size = self._size
        if size == 2:
            first, second = own
            rank = 1 if second > first else 0
            late = abs(second - first)
        elif size == 1:
            return
        else:
            last = max(own)
            rank = own.index(last)
            late = last - sorted(own)[-2]
        self._last[rank] += 1
        cost = self._cost[rank] = self._cost[rank] + late
        if (
            cost > STRAGGLER_S
            and self._reports >= STRAGGLER_REPORTS
            and cost > STRAGGLER_SHARE * self.seconds
            and self._last[rank] >= OFTEN_LAST * self._reports
            and not self._told
        ):
            self.straggler = rank

    def _without(
        self, busy: Sequence[float], waits: Sequence[Mapping[str, float]]
    ) -> Sequence[float]:
        """What of the busy time was a rank's own, and no waiting for other ranks."""
        own = []
        for mine, wait in zip(busy, waits, strict=True):
            ranks = wait.get("ranks", 0.0)
            self._waited += sum(wait.values())
            self._data += wait.get("data", 0.0)
            self._ranks += ranks
            own.append(mine - ranks - wait.get("communication", 0.0))
        return own

    @property
    def computed(self) -> float:
        """How long a rank computed, on average."""
        return (self._busy - self._waited) / max(self._size, 1)

    @property
    def data(self) -> float:
        """How long a rank waited for data, on average."""
        return self._data / max(self._size, 1)

    @property
    def ranks(self) -> float:
        """How long a rank waited for other ranks, on average."""
        return self._longest - (self._busy - self._ranks) / max(self._size, 1)

    def take_note(self) -> str:
        """The sentence about the straggler, with its evidence. There is one for an attempt."""
        rank = self.straggler
        assert rank is not None
        self.straggler, self._told = None, True
        often = self._last[rank] / self._reports
        late = self._cost[rank] / self._last[rank]
        share = self._cost[rank] / self.seconds
        return (
            f"Rank {rank} arrives last at {often:.0%} of {self._reports:,} reports, "
            f"{_duration(late)} after the others: that costs {share:.0%} of the time so far. "
            "Look at its machine and its data; lockstep why says more."
        )


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
