"""Asynchronous successive halving: at each rung, only the best part of the trials continues."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Mapping
from typing import Any

from lockstep.checks import check_int, check_positive
from lockstep.tune.schedulers.scoring import quantile, read_score, read_time
from lockstep.tune.schedulers.trial_scheduler import Decision, TrialScheduler, TuneController

__all__ = ["ASHAScheduler", "AsyncHyperBandScheduler"]


class AsyncHyperBandScheduler(TrialScheduler):
    """Stops trials that are not among the best at their rung.

    The rungs are at ``grace_period``, and then each at ``reduction_factor`` times the one before,
    below ``max_t``. A trial that reaches a rung continues if it is among the best
    ``1 / reduction_factor`` of the trials that reached the rung before. No trial waits for another.

    Args:
        time_attr: the result that measures a trial's progress; it must grow.
        metric, mode: how trials are compared; by default the ``TuneConfig``'s.
        max_t: every trial ends here.
        grace_period: no trial ends before this.
        reduction_factor: one in this many trials continues at each rung.
        brackets: the number of sets of rungs, each starting one rung later; each trial is in one.
        stop_last_trials: end trials at ``max_t``.
    """

    needs_metric = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(metric, mode)
        check_positive("ASHAScheduler", "max_t", max_t)
        check_positive("ASHAScheduler", "grace_period", grace_period)
        check_positive("ASHAScheduler", "reduction_factor", reduction_factor)
        if grace_period > max_t:
            raise ValueError(
                f"ASHAScheduler(grace_period={grace_period!r}, max_t={max_t!r}): no trial would "
                "end early; give a grace_period of at most max_t."
            )
        if reduction_factor <= 1:
            raise ValueError(
                f"ASHAScheduler(reduction_factor={reduction_factor!r}): must be above 1; one over "
                "it is the share of trials that continues."
            )
        check_int(f"ASHAScheduler(brackets={brackets!r})", brackets, 1)
        self._time_attr = time_attr
        self._max_t = max_t
        self._factor = reduction_factor
        self._stop_last_trials = stop_last_trials
        self._brackets = [
            _Bracket(grace_period * reduction_factor**s, max_t, reduction_factor)
            for s in range(brackets)
        ]
        self._bracket_of: dict[str, _Bracket] = {}
        self._added = 0
        self._stopped = 0

    def on_trial_add(self, tune_controller: TuneController, trial: Any) -> None:
        """Draw the trial's bracket: a bracket with more rungs gets more trials."""
        weights = [self._factor ** len(bracket.rungs) for bracket in self._brackets]
        # Seeded with the trial's number, so that a restore draws the same bracket.
        rng = random.Random(f"bracket {self._added}")
        self._bracket_of[trial.trial_id] = rng.choices(self._brackets, weights)[0]
        self._added += 1

    def on_trial_result(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any]
    ) -> Decision:
        """Stop the trial if it is not good enough for the rung it has reached."""
        reached = read_time(result, self._time_attr)
        score = read_score(result, self.metric, self.mode)
        if reached is None or score is None:
            return self.CONTINUE
        if reached >= self._max_t and self._stop_last_trials:
            decision = self.STOP
        else:
            bracket = self._bracket_of[trial.trial_id]
            decision = self.CONTINUE if bracket.enter(trial.trial_id, reached, score) else self.STOP
        self._stopped += decision == self.STOP
        return decision

    def on_trial_complete(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any] | None
    ) -> None:
        """Count the last result for its rung."""
        bracket = self._bracket_of.pop(trial.trial_id, None)
        if bracket is None or result is None:
            return
        reached = read_time(result, self._time_attr)
        score = read_score(result, self.metric, self.mode)
        if reached is not None and score is not None:
            # A trial may end by itself at a rung that it has not entered yet.
            bracket.enter(trial.trial_id, reached, score)
        bracket.forget(trial.trial_id)

    def on_trial_error(self, tune_controller: TuneController, trial: Any) -> None:
        """Forget the trial; its earlier results still count."""
        bracket = self._bracket_of.pop(trial.trial_id, None)
        if bracket is not None:
            bracket.forget(trial.trial_id)

    def on_trial_remove(self, tune_controller: TuneController, trial: Any) -> None:
        """Forget the trial; its earlier results still count."""
        self.on_trial_error(tune_controller, trial)

    def debug_string(self) -> str:
        """The number of stopped trials, and the score that a trial needs at each rung."""
        rungs = "; ".join(str(bracket) for bracket in self._brackets)
        return f"ASHA: {self._stopped} stopped; {rungs}"


ASHAScheduler = AsyncHyperBandScheduler


class _Bracket:
    """Rungs, the highest first, each with the scores of the trials that reached it."""

    def __init__(self, first: float, max_t: float, factor: float) -> None:
        self.rungs: list[tuple[float, list[float]]] = []
        self._keep = 1 - 1 / factor
        self._entered: dict[str, float] = {}
        milestone = first
        while milestone < max_t:
            self.rungs.insert(0, (milestone, []))
            milestone *= factor

    def enter(self, trial_id: str, reached: float, score: float) -> bool:
        """Whether a trial that has reached this time, with this score, may continue."""
        # From the highest: a trial that reports rarely may pass several rungs, and counts at the
        # last.
        for milestone, scores in self.rungs:
            if reached < milestone:
                continue
            if self._entered.get(trial_id, -math.inf) >= milestone:
                return True
            self._entered[trial_id] = milestone
            good_enough = not scores or score >= quantile(scores, self._keep)
            # After the comparison: a trial is compared with those before it, not with itself.
            bisect.insort(scores, score)
            return good_enough
        return True

    def forget(self, trial_id: str) -> None:
        """Forget a trial that is over."""
        self._entered.pop(trial_id, None)

    def __str__(self) -> str:
        return ", ".join(
            f"{milestone:g}: {quantile(scores, self._keep):.4g} of {len(scores)}"
            if scores
            else f"{milestone:g}: –"
            for milestone, scores in reversed(self.rungs)
        )
