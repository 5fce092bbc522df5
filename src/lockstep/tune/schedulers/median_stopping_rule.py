"""The median stopping rule: a trial ends that is worse than half of the others were."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Mapping
from statistics import median
from typing import Any

from lockstep.tune.schedulers.scoring import read_score, read_time
from lockstep.tune.schedulers.trial_scheduler import Decision, TrialScheduler, TuneController

__all__ = ["MedianStoppingRule"]


class MedianStoppingRule(TrialScheduler):
    """Stops a trial whose best result is worse than the median of the others' averages so far.

    Args:
        time_attr: what counts how far a trial is; it must grow.
        metric, mode: what is compared; by default the ``TuneConfig``'s.
        grace_period: how far every trial may come; results before it do not count.
        min_samples_required: how many other trials must have come as far.
        min_time_slice: while there are too few others to compare with, a trial that came so far
            makes room for one that waits, so that there soon are enough; 0: it does not.
        hard_stop: False pauses a trial instead: it goes on, to its end, when nothing else is left
            to run.
    """

    needs_metric = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
    ) -> None:
        super().__init__(metric, mode)
        for name, value in (("grace_period", grace_period), ("min_time_slice", min_time_slice)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ValueError(
                    f"MedianStoppingRule({name}={value!r}): expected a number, 0 or more."
                )
        if (
            isinstance(min_samples_required, bool)
            or not isinstance(min_samples_required, int)
            or min_samples_required < 1
        ):
            raise ValueError(
                f"MedianStoppingRule(min_samples_required={min_samples_required!r}): expected a "
                "whole number, 1 or more."
            )
        self._time_attr = time_attr
        self._grace_period = grace_period
        self._min_samples = min_samples_required
        self._min_time_slice = min_time_slice
        self._hard_stop = hard_stop
        self.pauses = not hard_stop or min_time_slice > 0
        self._courses: dict[str, _Course] = {}
        self._yielded_at: dict[str, float] = {}
        self._put_back: set[str] = set()
        self._stopped = 0

    def on_trial_result(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any]
    ) -> Decision:
        """Stop (or pause) it if it is worse than half of the others."""
        reached = read_time(result, self._time_attr)
        score = read_score(result, self.metric, self.mode)
        if reached is None or score is None or trial.trial_id in self._put_back:
            return self.CONTINUE
        course = self._courses.setdefault(trial.trial_id, _Course())
        course.add(reached, score, self._grace_period)
        if reached < self._grace_period:
            return self.CONTINUE
        others = [
            other.mean_until(reached)
            for trial_id, other in self._courses.items()
            if trial_id != trial.trial_id and other.times and other.times[-1] >= reached
        ]
        if len(others) < self._min_samples:
            return self._make_room(tune_controller, trial, reached)
        if course.best >= median(others):
            return self.CONTINUE
        self._stopped += 1
        if self._hard_stop:
            return self.STOP
        self._put_back.add(trial.trial_id)
        return self.PAUSE

    def _make_room(self, tune_controller: TuneController, trial: Any, reached: float) -> Decision:
        since = reached - self._yielded_at.get(trial.trial_id, 0.0)
        if not self._min_time_slice or since < self._min_time_slice:
            return self.CONTINUE
        live = tune_controller.get_live_trials()
        if not any(other.status in ("PENDING", "PAUSED") for other in live):
            return self.CONTINUE
        self._yielded_at[trial.trial_id] = reached
        return self.PAUSE

    def on_trial_error(self, tune_controller: TuneController, trial: Any) -> None:
        """What failed is no measure for others."""
        self._courses.pop(trial.trial_id, None)

    def debug_string(self) -> str:
        """How many it stopped."""
        return f"MedianStoppingRule: {self._stopped} stopped"


class _Course:
    """What a trial has reported, in 16 bytes a report."""

    def __init__(self) -> None:
        self.times = array("d")
        self.best = -math.inf
        self._sums = array("d", [0.0])

    def add(self, time: float, score: float, grace_period: float) -> None:
        """One more result; those within the grace period only count for the best."""
        self.best = max(self.best, score)
        if time >= grace_period and math.isfinite(score):
            self.times.append(time)
            self._sums.append(self._sums[-1] + score)

    def mean_until(self, time: float) -> float:
        """The average until then; the first result if there is none until then."""
        count = max(1, bisect.bisect_right(self.times, time))
        return self._sums[count] / count
