"""HyperBand: synchronous successive halving. Trials pause at a milestone until all arrive."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lockstep.checks import check_positive
from lockstep.tune.schedulers.scoring import read_score, read_time
from lockstep.tune.schedulers.trial_scheduler import Decision, TrialScheduler, TuneController

__all__ = ["HyperBandScheduler"]


class HyperBandScheduler(TrialScheduler):
    """Fills brackets with trials, runs each trial to a milestone, and continues with the best.

    Bracket ``s`` starts about ``reduction_factor ** s`` trials and halves ``s`` times; the brackets
    of a band range from many short trials to few long ones. A trial that waits for the others is
    paused, so training functions have to report checkpoints.

    Args:
        time_attr: the result that measures a trial's progress; it must grow.
        metric, mode: how trials are compared; by default the ``TuneConfig``'s.
        max_t: every trial ends here.
        reduction_factor: one in this many trials continues after each halving.
        stop_last_trials: end trials at ``max_t``; False: they run to their own end.
    """

    needs_metric = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: int = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(metric, mode)
        check_positive("HyperBandScheduler", "max_t", max_t)
        check_positive("HyperBandScheduler", "reduction_factor", reduction_factor)
        if reduction_factor <= 1:
            raise ValueError(
                f"HyperBandScheduler(reduction_factor={reduction_factor!r}): must be above 1; one "
                "over it is the share of trials that continues."
            )
        self._time_attr = time_attr
        self._max_t = max_t
        self._factor = reduction_factor
        self._stop_last_trials = stop_last_trials
        # Rounded: log(243) / log(3) is a little below 5.
        self._halvings = round(math.log(max_t) / math.log(reduction_factor))
        self._next_halvings = self._halvings
        self._filling: _Bracket | None = None
        self._bracket_of: dict[str, _Bracket] = {}
        self._ready: dict[str, Any] = {}
        self._stopped = 0
        self._num_brackets = 0

    def on_trial_add(self, tune_controller: TuneController, trial: Any) -> None:
        """Add the trial to the bracket that is being filled."""
        if self._filling is None:
            # Brackets of a band in turn: many short trials first, then fewer and longer ones.
            halvings = self._next_halvings
            self._next_halvings = self._halvings if halvings == 0 else halvings - 1
            size = math.ceil((self._halvings + 1) / (halvings + 1) * self._factor**halvings)
            first = max(1.0, self._max_t * self._factor**-halvings)
            self._filling = _Bracket(size, first, self._max_t, self._factor)
            self._num_brackets += 1
        bracket = self._filling
        bracket.trials[trial.trial_id] = trial
        self._bracket_of[trial.trial_id] = bracket
        if len(bracket.trials) == bracket.size:
            self._close(bracket)

    def on_trial_result(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any]
    ) -> Decision:
        """Pause a trial at its milestone; when the last one arrives, the best continue."""
        self._ready.pop(trial.trial_id, None)
        bracket = self._bracket_of.get(trial.trial_id)
        reached = read_time(result, self._time_attr)
        score = read_score(result, self.metric, self.mode)
        if bracket is None or reached is None or score is None:
            return self.CONTINUE
        if trial.trial_id in bracket.arrived:
            # Only in a replay: the trial continued because no other trial was left to arrive.
            self._close(bracket)
            bracket.advance()
        if reached >= self._max_t and self._stop_last_trials:
            self._stopped += 1
            return self.STOP
        if reached < bracket.milestone or bracket.milestone >= self._max_t:
            return self.CONTINUE
        bracket.arrived[trial.trial_id] = score
        if not bracket.complete:
            return self.PAUSE
        survivors = self._halve(tune_controller, bracket, current=trial)
        if trial.trial_id not in survivors:
            self._stopped += 1
            return self.STOP
        del self._ready[trial.trial_id]
        return self.CONTINUE

    def on_trial_complete(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any] | None
    ) -> None:
        """Remove the trial: the others do not wait for it any more."""
        bracket = self._bracket_of.pop(trial.trial_id, None)
        self._ready.pop(trial.trial_id, None)
        if bracket is None:
            return
        del bracket.trials[trial.trial_id]
        bracket.arrived.pop(trial.trial_id, None)
        if bracket.complete:
            self._halve(tune_controller, bracket, current=None)

    def on_trial_error(self, tune_controller: TuneController, trial: Any) -> None:
        """As for a trial that has finished."""
        self.on_trial_complete(tune_controller, trial, None)

    on_trial_remove = on_trial_error

    def choose_trial_to_run(self, tune_controller: TuneController) -> Any | None:
        """A pending trial, else a paused one that survived its halving.

        When only paused trials are left, no other will arrive: their brackets are halved as they
        are.
        """
        unfinished = tune_controller.get_live_trials()
        for trial in unfinished:
            if trial.status == "PENDING":
                return trial
        found = self._take_ready()
        if found is not None or any(trial.status == "RUNNING" for trial in unfinished):
            return found
        if self._filling is not None:
            self._close(self._filling)
        found_brackets = [self._bracket_of.get(trial.trial_id) for trial in unfinished]
        for bracket in dict.fromkeys(filter(None, found_brackets)):
            # A restored trial may have paused before its milestone: let it run until it arrives.
            for trial_id, trial in bracket.trials.items():
                if trial.status == "PAUSED" and trial_id not in bracket.arrived:
                    self._ready[trial_id] = trial
            if bracket.complete:
                self._halve(tune_controller, bracket, current=None)
        return self._take_ready()

    def debug_string(self) -> str:
        """The number of brackets, and of stopped trials."""
        return f"HyperBand: {self._num_brackets} bracket(s), {self._stopped} stopped"

    def _close(self, bracket: _Bracket) -> None:
        bracket.closed = True
        if self._filling is bracket:
            self._filling = None

    def _take_ready(self) -> Any | None:
        for trial_id in list(self._ready):
            trial = self._ready[trial_id]
            if trial.status == "PAUSED":
                del self._ready[trial_id]
                return trial
            if trial.status != "RUNNING":  # it is over; a running trial is about to pause
                del self._ready[trial_id]
        return None

    def _halve(self, tune_controller: TuneController, bracket: _Bracket, current: Any) -> set[str]:
        """Stop all but the best trials of a bracket; returns the ids of the best."""
        # At least one, or a small bracket would end without a result.
        keep = max(1, math.floor(len(bracket.arrived) / self._factor))
        ranked = sorted(bracket.arrived, key=lambda trial_id: bracket.arrived[trial_id])
        worse, better = ranked[:-keep], ranked[-keep:]
        bracket.advance()
        for trial_id in better:
            self._ready[trial_id] = bracket.trials[trial_id]
        for trial_id in worse:
            trial = bracket.trials.pop(trial_id)
            self._bracket_of.pop(trial_id, None)
            if current is None or trial_id != current.trial_id:
                self._stopped += 1
                tune_controller.stop_trial(trial)
        return set(better)


class _Bracket:
    """Trials that are compared and halved together."""

    def __init__(self, size: int, first: float, max_t: float, factor: float) -> None:
        self.size = size
        self.milestone = min(first, max_t)
        self._max_t = max_t
        self._factor = factor
        self.closed = False
        self.trials: dict[str, Any] = {}
        self.arrived: dict[str, float] = {}

    def advance(self) -> None:
        """Move to the next milestone, where no trial has arrived yet."""
        self.milestone = min(self.milestone * self._factor, self._max_t)
        self.arrived.clear()

    @property
    def complete(self) -> bool:
        """Whether all trials are at the milestone, and no other will be added."""
        return self.closed and bool(self.trials) and len(self.arrived) == len(self.trials)
