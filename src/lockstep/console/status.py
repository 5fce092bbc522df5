"""The snapshot of a run that a display shows, and the elapsed time and rate between snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Progress", "RunStatus"]

_RATE_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run's state at one instant.

    Attributes:
        state: starting, running, saving, stopping, restarting, finished, failed, interrupted or
            preempted.
        attempt: 1 for the first start of the workers.
        elapsed_s: seconds since the start of ``fit()``.
        reports: number of reports so far.
        metrics: the metrics of the newest report, without the automatic keys.
        checkpoint: name or path of the newest committed checkpoint.
        num_workers: 0 when the function runs in this process.
        name: the run's name.
        path: the run's directory or URI.
        data_wait: the fraction of time that the slowest rank waited for data before the newest
            report; None without datasets.
        best_value: the best so far, as a metric, its value and the number of its report.
        times: the shares of the time so far in which ranks computed, waited for data, and waited
            for other ranks; None before the first report.
        total_reports, total_s: how many reports and seconds the stop condition allows.
    """

    state: str
    attempt: int
    elapsed_s: float
    reports: int
    metrics: Mapping[str, Any]
    checkpoint: str | None
    num_workers: int
    name: str
    path: str
    data_wait: float | None = None
    best_value: tuple[str, float, int] | None = None
    times: tuple[float, float, float] | None = None
    total_reports: int | None = None
    total_s: float | None = None

    @property
    def over(self) -> bool:
        """Whether the run has ended, for any reason."""
        return self.state in ("finished", "failed", "interrupted", "preempted")


class Progress:
    """The newest status, the time elapsed since the start, and the rate of reports."""

    def __init__(self, status: RunStatus, clock: Callable[[], float]) -> None:
        self.status = status
        self._clock = clock
        self._started = clock() - status.elapsed_s
        self._samples = deque([(clock(), status.reports)])

    def elapsed(self) -> float:
        """Seconds since the start of the run; the final time once the run is over."""
        if self.status.over:
            return self.status.elapsed_s
        return max(self._clock() - self._started, self.status.elapsed_s)

    def left(self) -> float | None:
        """Seconds until the stop condition ends the run, at the present rate; None: unknown."""
        status = self.status
        if status.over:
            return None
        lefts = [] if status.total_s is None else [status.total_s - self.elapsed()]
        if status.total_reports is not None and (rate := self.rate()):
            lefts.append((status.total_reports - status.reports) / rate)
        return max(min(lefts), 0.0) if lefts else None

    def rate(self) -> float | None:
        """Reports per second over the last ten seconds; None while too few are known."""
        now, reports = self._clock(), self.status.reports
        samples = self._samples
        if reports < samples[-1][1]:  # a restart went back to an older checkpoint
            samples.clear()
        samples.append((now, reports))
        while len(samples) > 2 and samples[1][0] <= now - _RATE_WINDOW_S:
            samples.popleft()
        since, before = samples[0]
        known = now >= since + 1 and reports > before
        return (reports - before) / (now - since) if known else None
