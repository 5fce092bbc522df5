"""The median stopping rule: a trial ends if it is worse than the median of the others."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Mapping
from typing import Any

from lockstep.checks import check_int, is_number
from lockstep.tune.schedulers.scoring import read_score, read_time
from lockstep.tune.schedulers.trial_scheduler import Decision, TrialScheduler, TuneController

__all__ = ["MedianStoppingRule"]


class MedianStoppingRule(TrialScheduler):
    """Stops a trial whose best result is worse than the median of the others' averages so far.

    Times are compared to within one percent; integers up to 256 exactly.

    Args:
        time_attr: the result that measures a trial's progress; it must grow.
        metric, mode: how trials are compared; by default the ``TuneConfig``'s.
        grace_period: no trial ends before this, and earlier results do not count.
        min_samples_required: how many other trials must have reached the same time.
        min_time_slice: while there are too few others to compare with, a trial pauses after this
            time if another trial waits, so that there soon are enough; 0: it does not pause.
        hard_stop: False pauses a trial instead of stopping it: the trial continues, to its end,
            when nothing else is left to run.
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
            if not is_number(value) or not value >= 0:
                raise ValueError(
                    f"MedianStoppingRule({name}={value!r}): expected a number, 0 or more."
                )
        given = f"MedianStoppingRule(min_samples_required={min_samples_required!r})"
        check_int(given, min_samples_required, 1)
        self._time_attr = time_attr
        self._grace_period = grace_period
        self._min_samples = min_samples_required
        self._min_time_slice = min_time_slice
        self._hard_stop = hard_stop
        self._histories: dict[str, _History] = {}
        self._marks: list[float] = []
        """The times at which trials were compared, sorted."""
        self._averages: dict[float, list[float]] = {}
        """Mark → the averages up to it of all trials that have reached it, sorted."""
        self._yielded_at: dict[str, float] = {}
        self._deferred: set[str] = set()
        self._stopped = 0

    def on_trial_result(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any]
    ) -> Decision:
        """Stop (or pause) the trial if it is worse than the median of the others."""
        reached = read_time(result, self._time_attr)
        score = read_score(result, self.metric, self.mode)
        if reached is None or score is None or trial.trial_id in self._deferred:
            return self.CONTINUE
        history = self._histories.setdefault(trial.trial_id, _History())
        # Only the marks that this report passes get the trial's average; each is added once.
        before = history.reached
        history.add(reached, score, self._grace_period)
        self._add_averages(history, before)
        if reached < self._grace_period:
            return self.CONTINUE
        others, median = self._others(history, _mark(reached))
        if others < self._min_samples:
            return self._make_room(tune_controller, trial, reached)
        if history.best >= median:
            return self.CONTINUE
        self._stopped += 1
        if self._hard_stop:
            return self.STOP
        self._deferred.add(trial.trial_id)
        return self.PAUSE

    def _add_averages(self, history: _History, before: float) -> None:
        """Add a trial's average to every mark that it has passed since ``before``."""
        first = bisect.bisect_right(self._marks, before)
        last = bisect.bisect_right(self._marks, history.reached)
        for mark in self._marks[first:last]:
            bisect.insort(self._averages[mark], history.mean_until(mark))

    def _others(self, history: _History, mark: float) -> tuple[int, float]:
        """How many other trials have reached a mark, and the median of their averages there."""
        averages = self._averages.get(mark)
        if averages is None:
            arrived = (other for other in self._histories.values() if other.reached >= mark)
            averages = self._averages[mark] = sorted(other.mean_until(mark) for other in arrived)
            bisect.insort(self._marks, mark)
        count, own = len(averages), len(averages)
        if history.reached >= mark:
            count -= 1
            own = bisect.bisect_left(averages, history.mean_until(mark))
        if not count:
            return 0, -math.inf
        # The median without the trial's own value, which is skipped and not removed: the list is
        # shared.
        middle = [averages[i + (i >= own)] for i in ((count - 1) // 2, count // 2)]
        return count, sum(middle) / 2

    def _make_room(self, tune_controller: TuneController, trial: Any, reached: float) -> Decision:
        since = reached - self._yielded_at.get(trial.trial_id, 0.0)
        if not self._min_time_slice or since < self._min_time_slice:
            return self.CONTINUE
        unfinished = tune_controller.get_live_trials()
        if not any(other.status in ("PENDING", "PAUSED") for other in unfinished):
            return self.CONTINUE
        self._yielded_at[trial.trial_id] = reached
        return self.PAUSE

    def on_trial_error(self, tune_controller: TuneController, trial: Any) -> None:
        """Remove the results of a failed trial: the others are not compared with it."""
        history = self._histories.pop(trial.trial_id, None)
        if history is not None:
            for mark in self._marks[: bisect.bisect_right(self._marks, history.reached)]:
                averages = self._averages[mark]
                del averages[bisect.bisect_left(averages, history.mean_until(mark))]

    def debug_string(self) -> str:
        """The number of stopped trials."""
        return f"MedianStoppingRule: {self._stopped} stopped"


def _mark(time: float) -> float:
    """The time, rounded down to eight binary digits; integers up to 256 are exact.

    So there are few different marks, and the cost of a report does not grow with the trials.
    """
    if math.isinf(time):
        return time
    fraction, exponent = math.frexp(time)
    return math.ldexp(math.floor(fraction * 256), exponent - 8)


class _History:
    """A trial's reports, in 16 bytes each."""

    def __init__(self) -> None:
        self.times = array("d")
        self.best = -math.inf
        self._sums = array("d", [0.0])

    def add(self, time: float, score: float, grace_period: float) -> None:
        """Add a result; within the grace period it only counts for the best."""
        self.best = max(self.best, score)
        # A trial that resumes from a checkpoint may report some times again.
        if time >= grace_period and time > self.reached and math.isfinite(score):
            self.times.append(time)
            self._sums.append(self._sums[-1] + score)

    @property
    def reached(self) -> float:
        """The newest time that counts."""
        return self.times[-1] if self.times else -math.inf

    def mean_until(self, time: float) -> float:
        """The average of the results up to this time; the first result if there are none."""
        count = max(1, bisect.bisect_right(self.times, time))
        return self._sums[count] / count
