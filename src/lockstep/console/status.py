"""The snapshot of a run that a display is given, and what follows from a series of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Progress", "RunStatus"]

_RATE_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Where one run stands, at one instant.

    Attributes:
        state: starting, running, saving, stopping, restarting, finished, failed, interrupted or
            preempted.
        attempt: 1 for the first start of the workers.
        elapsed_s: seconds since ``fit()`` began.
        reports: reports so far.
        metrics: the newest metrics the user reported, without the automatic keys.
        checkpoint: name or path of the newest committed checkpoint.
        num_workers: 0 when the function runs in this process.
        name: the run's name.
        path: the run's directory or URI.
        data_wait: the share of its time that the slowest rank waited for data before the newest
            report; None without datasets.
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

    @property
    def over(self) -> bool:
        """Whether the run has ended, in whichever way."""
        return self.state in ("finished", "failed", "interrupted", "preempted")


class Progress:
    """The newest status, a clock that runs between updates, and the rate of reports."""

    def __init__(self, status: RunStatus, clock: Callable[[], float]) -> None:
        self.status = status
        self._clock = clock
        self._began = clock() - status.elapsed_s
        self._samples = deque([(clock(), status.reports)])

    def elapsed(self) -> float:
        """Seconds since the run began, now; the status's own once the run is over."""
        if self.status.over:
            return self.status.elapsed_s
        return max(self._clock() - self._began, self.status.elapsed_s)

    def rate(self) -> float | None:
        """Reports a second over the last ten seconds, None before there is one to tell."""
        now, reports = self._clock(), self.status.reports
        samples = self._samples
        if reports < samples[-1][1]:
            samples.clear()
        samples.append((now, reports))
        while len(samples) > 2 and samples[1][0] <= now - _RATE_WINDOW_S:
            samples.popleft()
        since, before = samples[0]
        told = now >= since + 1 and reports > before
        return (reports - before) / (now - since) if told else None
