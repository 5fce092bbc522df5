"""Stoppers: they end a trial early, or the complete experiment."""

from __future__ import annotations

import bisect
import datetime
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from statistics import pstdev
from typing import Any

from lockstep.checks import check_int, check_positive, is_number
from lockstep.metrics import look_up
from lockstep.tune.search.sample import takes

__all__ = [
    "CombinedStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "NoopStopper",
    "Stopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
]


class Stopper(ABC):
    """Decides when trials end. Given as ``RunConfig(stop=…)``.

    Every call comes from one thread, one at a time. A stopper is never pickled: when an experiment
    is restored, all earlier reports are replayed to a new one.
    """

    @abstractmethod
    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether a trial ends at this report."""

    @abstractmethod
    def stop_all(self) -> bool:
        """Whether the experiment ends now. Called after each report, and twice a second."""


class _TrialStopper(Stopper):
    """Ends single trials, never the experiment."""

    def stop_all(self) -> bool:
        """Never."""
        return False


class NoopStopper(_TrialStopper):
    """Stops nothing."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Never."""
        return False


class FunctionStopper(_TrialStopper):
    """Ends a trial when ``function(trial_id, result)`` returns True."""

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        if not self.is_valid_function(function):
            raise TypeError(
                f"FunctionStopper({function!r}): expected a function of (trial_id, result)."
            )
        self._function = function

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """The function's answer."""
        return bool(self._function(trial_id, result))

    @classmethod
    def is_valid_function(cls, fn: object) -> bool:
        """Whether the function can be called with a trial's id and a result."""
        if not callable(fn) or isinstance(fn, (type, Stopper)):
            return False
        return takes(fn, "trial", {})


class MaximumIterationStopper(_TrialStopper):
    """Ends a trial after ``max_iter`` reports."""

    def __init__(self, max_iter: int) -> None:
        check_int(f"MaximumIterationStopper(max_iter={max_iter!r})", max_iter, 1)
        self._max_iter = max_iter

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether the trial has reported ``max_iter`` times."""
        return bool(result["training_iteration"] >= self._max_iter)


class TimeoutStopper(Stopper):
    """Ends the experiment after a time, measured from the first call.

    Args:
        timeout: seconds, or a ``datetime.timedelta``.
    """

    def __init__(self, timeout: float | datetime.timedelta) -> None:
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        if not is_number(seconds):
            raise TypeError(
                f"TimeoutStopper(timeout={timeout!r}): expected seconds or a datetime.timedelta."
            )
        if not 0 < seconds < math.inf:
            raise ValueError(f"TimeoutStopper(timeout={timeout!r}): must be above 0 and finite.")
        self._seconds = float(seconds)
        self._started: float | None = None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether the time is up."""
        return self.stop_all()

    def stop_all(self) -> bool:
        """Whether the time is up."""
        now = time.monotonic()
        if self._started is None:
            self._started = now
        return now - self._started >= self._seconds


class TrialPlateauStopper(_TrialStopper):
    """Ends a trial whose metric does not change any more.

    Args:
        metric: the name of the metric.
        std: a trial ends when the standard deviation of its last results is below this.
        num_results: how many of the last results count.
        grace_period: no trial ends before this many reports.
        metric_threshold: only a trial that has reached this value ends.
        mode: with ``metric_threshold``: ``"min"`` is reached from above, ``"max"`` from below.
    """

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: str | None = None,
    ) -> None:
        _check_metric("TrialPlateauStopper", metric)
        check_positive("TrialPlateauStopper", "std", std)
        check_int(f"TrialPlateauStopper(num_results={num_results!r})", num_results, 1)
        check_int(f"TrialPlateauStopper(grace_period={grace_period!r})", grace_period)
        if mode not in (None, "min", "max") or (metric_threshold is not None and mode is None):
            raise ValueError(
                f"TrialPlateauStopper(metric_threshold={metric_threshold!r}, mode={mode!r}): "
                "mode says from which side it is reached; give 'min' or 'max'."
            )
        self._metric = metric
        self._std = std
        self._num_results = num_results
        self._grace_period = grace_period
        self._threshold = metric_threshold
        self._mode = mode
        self._reports: dict[str, int] = {}
        self._last: dict[str, deque[float]] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether the trial's last results are almost equal."""
        value = _number(result, self._metric)
        self._reports[trial_id] = reports = self._reports.get(trial_id, 0) + 1
        last = self._last.setdefault(trial_id, deque(maxlen=self._num_results))
        last.append(value)
        if reports < self._grace_period or len(last) < self._num_results:
            return False
        if self._threshold is not None:
            reached = value <= self._threshold if self._mode == "min" else value >= self._threshold
            if not reached:
                return False
        stopping = all(map(math.isfinite, last)) and pstdev(last) < self._std
        if stopping:
            del self._reports[trial_id], self._last[trial_id]
        return stopping


class ExperimentPlateauStopper(Stopper):
    """Ends the experiment when the best results do not improve any more.

    Args:
        metric: the name of the metric.
        std: a plateau is a standard deviation of the best results of at most this.
        top: how many of the best results count.
        mode: ``"min"`` or ``"max"``: which results are best.
        patience: how many more reports a plateau has to last.
    """

    def __init__(
        self,
        metric: str,
        std: float = 0.001,
        top: int = 10,
        mode: str = "min",
        patience: int = 0,
    ) -> None:
        _check_metric("ExperimentPlateauStopper", metric)
        check_positive("ExperimentPlateauStopper", "std", std)
        check_int(f"ExperimentPlateauStopper(top={top!r})", top, 2)
        check_int(f"ExperimentPlateauStopper(patience={patience!r})", patience)
        if mode not in ("min", "max"):
            raise ValueError(f"ExperimentPlateauStopper(mode={mode!r}): expected 'min' or 'max'.")
        self._metric = metric
        self._std = std
        self._top = top
        self._sign = 1 if mode == "min" else -1
        self._patience = patience
        self._best: list[float] = []
        self._plateau_reports = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Count a result; whether the experiment ends."""
        value = _number(result, self._metric)
        if math.isfinite(value):
            bisect.insort(self._best, self._sign * value)
            del self._best[self._top :]
        self._plateau_reports = self._plateau_reports + 1 if self.has_plateaued() else 0
        return self.stop_all()

    def has_plateaued(self) -> bool:
        """Whether the best results are almost equal."""
        return len(self._best) == self._top and pstdev(self._best) <= self._std

    def stop_all(self) -> bool:
        """Whether the plateau has lasted for ``patience`` reports."""
        return self.has_plateaued() and self._plateau_reports >= self._patience


class CombinedStopper(Stopper):
    """Stops when any of several stoppers does."""

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            if not isinstance(stopper, Stopper):
                raise TypeError(
                    f"CombinedStopper({stopper!r}): expected stoppers; wrap a function in "
                    "FunctionStopper."
                )
        self._stoppers = stoppers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether any stopper ends the trial."""
        # Every stopper is called, also after a True: stoppers count what they see.
        verdicts = [stopper(trial_id, result) for stopper in self._stoppers]
        return any(verdicts)

    def stop_all(self) -> bool:
        """Whether any stopper ends the experiment."""
        return any(stopper.stop_all() for stopper in self._stoppers)


def _number(result: Mapping[str, Any], metric: str) -> float:
    value = look_up(result, metric)
    return float(value) if is_number(value) else math.nan


def _check_metric(owner: str, metric: object) -> None:
    if not isinstance(metric, str) or not metric:
        raise ValueError(f"{owner}(metric={metric!r}): expected the name of a reported metric.")
