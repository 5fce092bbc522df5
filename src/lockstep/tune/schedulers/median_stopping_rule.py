"""The median stopping rule: a trial ends that is worse than half of the others were."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Mapping
from typing import Any

from lockstep.checks import is_int, is_number
from lockstep.tune.schedulers.scoring import read_score, read_time
from lockstep.tune.schedulers.trial_scheduler import Decision, TrialScheduler, TuneController

__all__ = ["MedianStoppingRule"]


class MedianStoppingRule(TrialScheduler):
    """Stops a trial whose best result is worse than the median of the others' averages so far.

    Times are compared to within one percent; whole numbers up to 256 exactly.

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
            if not is_number(value) or not value >= 0:
                raise ValueError(
                    f"MedianStoppingRule({name}={value!r}): expected a number, 0 or more."
                )
        if not is_int(min_samples_required) or min_samples_required < 1:
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
        self._marks: list[float] = []
        """The times at which trials were compared, in order."""
        self._averages: dict[float, list[float]] = {}
        """Mark → the averages until then of all trials that came so far, in order."""
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
        before = course.reached
        course.add(reached, score, self._grace_period)
        self._pass(course, before)
        if reached < self._grace_period:
            return self.CONTINUE
        others, median = self._others(course, _mark(reached))
        if others < self._min_samples:
            return self._make_room(tune_controller, trial, reached)
        if course.best >= median:
            return self.CONTINUE
        self._stopped += 1
        if self._hard_stop:
            return self.STOP
        self._put_back.add(trial.trial_id)
        return self.PAUSE

    def _pass(self, course: _Course, before: float) -> None:
        """Note its average at every mark that it has come past since then."""
        first = bisect.bisect_right(self._marks, before)
        last = bisect.bisect_right(self._marks, course.reached)
        for mark in self._marks[first:last]:
            bisect.insort(self._averages[mark], course.mean_until(mark))

    def _others(self, course: _Course, mark: float) -> tuple[int, float]:
        """How many other trials have come so far, and the median of their averages there."""
        averages = self._averages.get(mark)
        if averages is None:
            came = (other for other in self._courses.values() if other.reached >= mark)
            averages = self._averages[mark] = sorted(other.mean_until(mark) for other in came)
            bisect.insort(self._marks, mark)
        count, own = len(averages), len(averages)
        if course.reached >= mark:
            count -= 1
            own = bisect.bisect_left(averages, course.mean_until(mark))
        if not count:
            return 0, -math.inf
        middle = [averages[i + (i >= own)] for i in ((count - 1) // 2, count // 2)]
        return count, sum(middle) / 2

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
        course = self._courses.pop(trial.trial_id, None)
        if course is not None:
            for mark in self._marks[: bisect.bisect_right(self._marks, course.reached)]:
                averages = self._averages[mark]
                del averages[bisect.bisect_left(averages, course.mean_until(mark))]

    def debug_string(self) -> str:
        """How many it stopped."""
        return f"MedianStoppingRule: {self._stopped} stopped"


def _mark(time: float) -> float:
    """The time, to eight binary digits: so there are few, and a report costs the same for any
    number of trials. Whole numbers up to 256 are exact."""
    if math.isinf(time):
        return time
    fraction, exponent = math.frexp(time)
    return math.ldexp(math.floor(fraction * 256), exponent - 8)


class _Course:
    """What a trial has reported, in 16 bytes a report."""

    def __init__(self) -> None:
        self.times = array("d")
        self.best = -math.inf
        self._sums = array("d", [0.0])

    def add(self, time: float, score: float, grace_period: float) -> None:
        """One more result; those within the grace period only count for the best."""
        self.best = max(self.best, score)
        # A trial that goes on from a checkpoint may report some times again.
        if time >= grace_period and time > self.reached and math.isfinite(score):
            self.times.append(time)
            self._sums.append(self._sums[-1] + score)

    @property
    def reached(self) -> float:
        """Its newest time that counts."""
        return self.times[-1] if self.times else -math.inf

    def mean_until(self, time: float) -> float:
        """The average until then; the first result if there is none until then."""
        count = max(1, bisect.bisect_right(self.times, time))
        return self._sums[count] / count
