"""The points of one metric: all of them while they are few, else the least and the greatest.

A series of any length keeps a bounded number of points. When it is full, of every four neighbours
the smallest and the largest value stay, with their own steps and times. So a peak is never lost,
and what is kept are points that were reported.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

__all__ = ["Series", "SeriesSet", "thin"]


_FEWEST = 16
"""How many points a series keeps at least, however many there are."""


class Series:
    """Points (step, time, value) in the order they were reported."""

    __slots__ = ("_most", "compacted", "count", "steps", "times", "values")

    def __init__(self, most: int) -> None:
        self._most = most
        self.steps = array("d")
        self.times = array("d")
        self.values = array("d")
        self.count = 0
        """How many points were added, kept or not."""
        self.compacted = 0
        """``count`` when points were last thinned: those added since are all kept."""

    def add(self, step: float, time: float, value: float) -> None:
        """Add a point."""
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)
        self.count += 1
        if len(self.values) >= self._most:
            self._compact()

    def limit(self, most: int) -> None:
        """Keep at most this number of points from now on."""
        self._most = most
        while len(self.values) >= most:
            self._compact()

    def extend(self, other: Series, last: float) -> None:
        """Add the points of another series, up to a step."""
        for step, time, value in zip(other.steps, other.times, other.values, strict=True):
            if step <= last:
                self.add(step, time, value)

    def since(self, count: int) -> tuple[array[float], array[float], array[float]] | None:
        """The points added after the first ``count`` ones; None if some of them are gone."""
        if count < self.compacted or count > self.count:
            return None
        start = len(self.values) - (self.count - count)
        return self.steps[start:], self.times[start:], self.values[start:]

    def _compact(self) -> None:
        steps, times, values = self.steps, self.times, self.values
        keep = array("q")
        for start in range(0, len(values) - 3, 4):
            four = values[start : start + 4]
            if any(map(math.isnan, four)):
                # A value that is no number matters more than the largest: where it is, stays seen.
                first = next(i for i in range(4) if math.isnan(four[i]))
                other = (first + 2) % 4
                keep.extend(sorted((start + first, start + other)))
                continue
            low, high = four.index(min(four)), four.index(max(four))
            # Of four equal values the first and the last: the line keeps its length.
            keep.extend((start, start + 3) if low == high else sorted((start + low, start + high)))
        keep.extend(range(len(values) - len(values) % 4, len(values)))
        self.steps = array("d", [steps[i] for i in keep])
        self.times = array("d", [times[i] for i in keep])
        self.values = array("d", [values[i] for i in keep])
        self.compacted = self.count


class SeriesSet:
    """Series that share a bounded number of points: the more there are, the fewer each has.

    Args:
        most: how many points one has at most.
        total: how many they have together.
        count: how many series there may be.
    """

    __slots__ = ("_count", "_made", "_most", "_total")

    def __init__(self, most: int, total: int, count: int) -> None:
        self._most = most
        self._total = total
        self._count = count
        self._made: list[Series] = []

    def new(self) -> Series | None:
        """Another series; None if there are as many as there may be."""
        if len(self._made) >= self._count:
            return None
        if (len(self._made) + 1) * self._most > self._total and self._most > _FEWEST:
            self._most //= 2
            for series in self._made:
                series.limit(self._most)
        series = Series(self._most)
        self._made.append(series)
        return series


def thin(
    series: Series,
    most: int,
    *,
    by_time: bool = False,
    low: float | None = None,
    high: float | None = None,
) -> dict[str, list[float] | list[float | None]]:
    """At most about ``most`` points of a series, for a chart: each part's minimum and maximum.

    Between two steps (or times), with one point beyond each end, so that the line reaches the
    edges. A value that is not finite is None, a gap in the line.
    """
    import numpy as np

    steps, times = np.array(series.steps, np.float64), np.array(series.times, np.float64)
    values = np.array(series.values, np.float64)
    chosen: Any = slice(None)
    if low is not None and high is not None and len(values):
        x = times if by_time else steps
        inside = np.flatnonzero((x >= low) & (x <= high))
        first, last = (inside[0], inside[-1]) if len(inside) else (0, -1)
        chosen = slice(max(first - 1, 0), last + 2)
    steps, times, values = steps[chosen], times[chosen], values[chosen]
    if len(values) > most:
        kept = _extremes(values, max(most // 2, 1))
        steps, times, values = steps[kept], times[kept], values[kept]
    finite = np.isfinite(values).tolist()
    shown = [value if ok else None for value, ok in zip(values.tolist(), finite, strict=True)]
    return {"steps": steps.tolist(), "times": times.tolist(), "values": shown}


def _extremes(ys: Numbers, parts: int) -> NDArray[np.intp]:
    """The indices of the smallest and the largest value of each part, in order."""
    import numpy as np

    width = -(-len(ys) // parts)
    padding = width * -(-len(ys) // width) - len(ys)
    padded = np.concatenate([ys, np.full(padding, np.nan)]).reshape(-1, width)
    start = np.arange(len(padded)) * width
    low = start + np.argmin(np.where(np.isnan(padded), np.inf, padded), axis=1)
    high = start + np.argmax(np.where(np.isnan(padded), -np.inf, padded), axis=1)
    found = np.unique(np.concatenate([low, high, [0, len(ys) - 1]]))
    kept: NDArray[np.intp] = found[found < len(ys)]
    return kept
