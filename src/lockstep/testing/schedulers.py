"""The conformance suite of schedulers: the contract of ``lockstep.tune.schedulers.TrialScheduler``.

A test module subclasses it with a ``make_scheduler`` method; pytest runs the inherited tests:

    class TestMyScheduler(SchedulerConformance):
        def make_scheduler(self):
            return MyScheduler()

No process is started: the trials are simulated, see ``lockstep.testing.simulation``.
"""

from __future__ import annotations

import math
import random
from typing import Any

from lockstep.testing.simulation import Simulation, simulate
from lockstep.tune.schedulers.trial_scheduler import TrialScheduler

__all__ = ["SchedulerConformance"]

TRIALS = 12
STEPS = 12


class SchedulerConformance:
    """Tests that every scheduler passes. Subclass it and define ``make_scheduler``.

    Trials report ``score`` (higher is better) and ``training_iteration``, for at most 12 steps.
    """

    def make_scheduler(self) -> TrialScheduler:
        """Return a new scheduler. The metric and mode come from the ``TuneConfig``."""
        raise NotImplementedError("return your scheduler from make_scheduler()")

    def test_every_trial_ends(self) -> None:
        """No trial is left waiting, whatever the number of slots."""
        for slots in (1, 2, 5, TRIALS + 1):
            done = self._simulate(slots=slots)
            assert [trial.status for trial in done.trials] == ["TERMINATED"] * TRIALS

    def test_one_trial_alone(self) -> None:
        """A trial that can be compared with no other runs to its end."""
        done = self._simulate(trials=1, slots=1)
        assert done.trials[0].status == "TERMINATED"
        assert done.trials[0].steps == STEPS

    def test_the_best_trial_is_not_stopped(self) -> None:
        """A trial that is always better than all others runs to its end."""
        done = self._simulate()
        best = max(done.trials, key=lambda trial: trial.config["height"])
        assert best.steps == STEPS

    def test_trials_that_fail(self) -> None:
        """No trial waits for a trial that has failed."""
        for failing in (lambda t, n: n == 1, lambda t, n: n == 3 and int(t) % 2 == 0):
            done = self._simulate(fails=failing)
            assert all(trial.status in ("TERMINATED", "ERROR") for trial in done.trials)

    def test_values_that_are_no_numbers(self) -> None:
        """NaN and infinities are results, too: the worst, or the best."""

        def step(config: dict[str, Any], state: Any) -> tuple[int, dict[str, Any]]:
            count = (state or 0) + 1
            strange = (math.nan, math.inf, -math.inf, 1.0)[config["number"] % 4]
            return count, {"score": strange}

        done = self._simulate(step=step)
        assert [trial.status for trial in done.trials] == ["TERMINATED"] * TRIALS

    def test_equal_trials(self) -> None:
        """Any of several equal trials may be stopped, but at least one continues."""
        done = self._simulate(step=lambda config, state: ((state or 0) + 1, {"score": 1.0}))
        assert max(trial.steps for trial in done.trials) == STEPS

    def test_the_same_results_give_the_same_decisions(self) -> None:
        """Decisions depend only on the arguments and the reported results."""
        assert self._simulate().decisions == self._simulate().decisions

    def test_used_again(self) -> None:
        """A scheduler that another experiment has used starts over."""
        scheduler = self.make_scheduler()
        first = self._simulate(scheduler=scheduler)
        assert self._simulate(scheduler=scheduler).decisions == first.decisions

    def test_restored_at_any_event(self) -> None:
        """After a replay of the events, a recreated scheduler decides like the first one."""
        uninterrupted = self._simulate()
        events = len(uninterrupted.decisions) + 2 * TRIALS
        for event in range(0, events, 7):
            assert self._simulate(restore_after=event).decisions == uninterrupted.decisions

    def test_the_other_mode(self) -> None:
        """With ``mode="min"`` and the opposite sign, the decisions are the same."""

        def descend(config: dict[str, Any], state: Any) -> tuple[int, dict[str, Any]]:
            state, metrics = _climb(config, state)
            return state, {"score": -metrics["score"]}

        assert self._simulate(step=descend, mode="min").decisions == self._simulate().decisions

    def _simulate(
        self,
        *,
        trials: int = TRIALS,
        step: Any = None,
        scheduler: TrialScheduler | None = None,
        **options: Any,
    ) -> Simulation:
        make = self.make_scheduler if scheduler is None else lambda: scheduler
        heights = [random.Random(f"height {number}").random() for number in range(trials)]
        configs = [{"number": n, "height": height, "lr": 0.1} for n, height in enumerate(heights)]
        return simulate(make, configs, step or _climb, max_steps=STEPS, **options)


def _climb(config: dict[str, Any], state: Any) -> tuple[int, dict[str, Any]]:
    count = (state or 0) + 1
    return count, {"score": config["height"] * (1 - 0.5**count)}
