"""Population based training: the worst trials go on from the best ones, with changed configs."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.checks import is_number
from lockstep.tune.schedulers.explore import check_mutations, explore, fill
from lockstep.tune.schedulers.scoring import check_positive, read_score, read_time
from lockstep.tune.schedulers.trial_scheduler import Decision, TrialScheduler, TuneController

__all__ = ["PopulationBasedTraining"]

GLOBAL_LOG = "pbt_global.txt"


class PopulationBasedTraining(TrialScheduler):
    """Every ``perturbation_interval``, a trial among the worst takes over one of the best.

    It goes on from the newest checkpoint of that one, with its config changed a little, so a
    training function has to report checkpoints, and to start from ``tune.get_checkpoint()``.
    Which trial took over which, and with what config, is in the experiment directory:
    ``pbt_global.txt``, and ``pbt_policy_<trial id>.txt`` with the whole ancestry of a trial.

    Args:
        time_attr: what counts how far a trial is; it must grow.
        metric, mode: what is compared; by default the ``TuneConfig``'s.
        perturbation_interval: how far a trial comes between two comparisons.
        burn_in_period: how far it comes before the first.
        hyperparam_mutations: which values change, and to what: a domain such as
            ``tune.loguniform(…)``, a list of values, a function without arguments, or a dict of
            them for a nested config. What a config does not have at first is drawn from it.
        quantile_fraction: the share of the trials that is among the worst, and among the best; 0
            to 0.5.
        resample_probability: how often a value is drawn anew instead of changed a little.
        perturbation_factors: a number changes by one of these factors; a value of a list to one
            of its neighbours.
        custom_explore_fn: ``config -> config``, called last.
        log_config: write the logs.
        require_attrs: a result without the metric or the time is an error.
        synch: wait at each interval until all trials are there.
        seed: makes the changes reproducible.
    """

    needs_metric = True
    pauses = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(metric, mode)
        owner = "PopulationBasedTraining"
        check_positive(owner, "perturbation_interval", perturbation_interval)
        for name, value, most in (
            ("burn_in_period", burn_in_period, float("inf")),
            ("quantile_fraction", quantile_fraction, 0.5),
            ("resample_probability", resample_probability, 1.0),
        ):
            number = is_number(value)
            if not number or not 0 <= value <= most:
                raise ValueError(f"{owner}({name}={value!r}): expected a number from 0 to {most}.")
        if not perturbation_factors:
            raise ValueError(f"{owner}(perturbation_factors={perturbation_factors!r}): give one.")
        for factor in perturbation_factors:
            check_positive(owner, "perturbation_factors", factor)
        if custom_explore_fn is not None and not callable(custom_explore_fn):
            raise TypeError(f"{owner}(custom_explore_fn={custom_explore_fn!r}): not a function.")
        self._mutations = check_mutations(owner, hyperparam_mutations)
        if not self._mutations and custom_explore_fn is None:
            raise ValueError(
                f"{owner}(hyperparam_mutations={hyperparam_mutations!r}) would change nothing; "
                "name a hyperparameter, or give custom_explore_fn."
            )
        self._time_attr = time_attr
        self._interval = perturbation_interval
        self._burn_in = burn_in_period
        self._fraction = quantile_fraction
        self._resample = resample_probability
        self._factors = tuple(perturbation_factors)
        self._custom = custom_explore_fn
        self._log = log_config
        self._require = require_attrs
        self._synch = synch
        self._seed = seed
        self._members: dict[str, _Member] = {}
        self._population: int | None = None
        self._filled = 0
        self._next_meeting = max(perturbation_interval, burn_in_period)
        self._perturbations = 0
        by_iteration = time_attr == "training_iteration"
        self.checkpoint_frequency = max(1, int(perturbation_interval)) if by_iteration else 1

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take the metric, the mode, and how many trials there will be."""
        taken = super().set_search_properties(metric, mode, **spec)
        self._population = spec.get("num_trials")
        return taken

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """Draw the values that are to be mutated and that the config does not have."""
        self._filled += 1
        return fill(config, self._mutations, self._random("config", self._filled))

    def on_trial_add(self, tune_controller: TuneController, trial: Any) -> None:
        """One more in the population."""
        self._members[trial.trial_id] = _Member(len(self._members), trial)

    def on_trial_result(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any]
    ) -> Decision:
        """At each interval: go on, or take over a better one."""
        reached = read_time(result, self._time_attr)
        score = read_score(result, self.metric, self.mode)
        if reached is None or score is None:
            if self._require:
                missing = self._time_attr if reached is None else self.metric
                raise RuntimeError(
                    f"PopulationBasedTraining: trial {trial.trial_id} reported no {missing!r}; "
                    "report it each time, or give require_attrs=False."
                )
            return self.CONTINUE
        member = self._members[trial.trial_id]
        member.reached, member.current = reached, score
        member.iteration = int(result.get("training_iteration", 0))
        if self._synch:
            return self._meet(tune_controller, member)
        if reached < self._burn_in or reached - member.perturbed_at < self._interval:
            return self.CONTINUE
        member.perturbed_at, member.score = reached, score
        worst, best = self._quantiles()
        if member in worst and self._take_over(tune_controller, member, best):
            return self.PAUSE
        return self.PAUSE if self._others_wait(tune_controller) else self.CONTINUE

    def on_trial_complete(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any] | None
    ) -> None:
        """It is not compared any more, and those who meet do not wait for it."""
        self._ended(tune_controller, trial)

    def on_trial_error(self, tune_controller: TuneController, trial: Any) -> None:
        """It is not compared any more, and those who meet do not wait for it."""
        self._ended(tune_controller, trial)

    def on_trial_remove(self, tune_controller: TuneController, trial: Any) -> None:
        """It is not compared any more, and those who meet do not wait for it."""
        self._ended(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: TuneController) -> Any | None:
        """The waiting trial that is furthest behind, so that all come along."""
        chosen = None
        for trial in tune_controller.get_live_trials():
            if trial.status not in ("PENDING", "PAUSED"):
                continue
            member = self._members[trial.trial_id]
            if self._synch and trial.status == "PAUSED" and member.reached >= self._next_meeting:
                continue  # it waits for the others
            if chosen is None or member.reached < chosen.reached:
                chosen = member
        return None if chosen is None else chosen.trial

    def debug_string(self) -> str:
        """How often a trial took over another."""
        return f"PopulationBasedTraining: {self._perturbations} perturbation(s)"

    def _others_wait(self, tune_controller: TuneController) -> bool:
        """Whether a trial makes room: for one that waits, or one that is still to come."""
        if self._population is not None and len(self._members) < self._population:
            return True
        return any(t.status in ("PENDING", "PAUSED") for t in tune_controller.get_live_trials())

    def _ended(self, tune_controller: TuneController, trial: Any) -> None:
        self._members[trial.trial_id].over = True
        if self._synch and self._all_met():
            self._hold_meeting(tune_controller)

    def _meet(self, tune_controller: TuneController, member: _Member) -> Decision:
        if member.reached < self._next_meeting:
            return self.CONTINUE
        member.score = member.current
        if not self._all_met():
            return self.PAUSE
        return self.PAUSE if self._hold_meeting(tune_controller, member) else self.CONTINUE

    def _all_met(self) -> bool:
        if self._population is not None and len(self._members) < self._population:
            return False
        live = [member for member in self._members.values() if not member.over]
        return bool(live) and all(member.reached >= self._next_meeting for member in live)

    def _hold_meeting(self, tune_controller: TuneController, last: _Member | None = None) -> bool:
        """All are there: each of the worst takes over a better one. Whether the last one does."""
        worst, best = self._quantiles()
        took_over = [m for m in worst if self._take_over(tune_controller, m, best)]
        furthest = max(member.reached for member in self._members.values())
        while self._next_meeting <= furthest:
            self._next_meeting += self._interval
        return last in took_over or (last is not None and self._others_wait(tune_controller))

    def _take_over(
        self, tune_controller: TuneController, member: _Member, best: list[_Member]
    ) -> bool:
        candidates = [other for other in best if other.trial.checkpoint is not None]
        if not candidates:
            return False
        who = member.trial.trial_id if self._seed is None else member.number
        rng = self._random(who, member.reached)
        donor = rng.choice(candidates)
        config = explore(
            donor.trial.config, self._mutations, self._resample, self._factors, self._custom, rng
        )
        row = [
            member.trial.trial_id,
            donor.trial.trial_id,
            member.iteration,
            donor.iteration,
            dict(donor.trial.config),
            config,
        ]
        happens = tune_controller.exploit(member.trial, config, donor.trial.checkpoint)
        self._perturbations += 1
        member.score = None  # it is somebody else now: its old result says nothing
        if self._log and happens:
            _write_log(os.path.dirname(str(member.trial.path)), row)
        return True

    def _quantiles(self) -> tuple[list[_Member], list[_Member]]:
        """The worst and the best of those that were compared already and are not over."""
        ranked = [m for m in self._members.values() if m.score is not None and not m.over]
        ranked.sort(key=lambda member: member.score or 0.0)
        if len(ranked) < 2:
            return [], []
        count = min(max(1, round(len(ranked) * self._fraction)), len(ranked) // 2)
        if self._fraction == 0:
            count = 0
        return ranked[:count], ranked[len(ranked) - count :]

    def _random(self, *key: Any) -> random.Random:
        return random.Random("/".join(map(str, (self._seed, *key))))


class _Member:
    """A trial of the population."""

    def __init__(self, number: int, trial: Any) -> None:
        self.number = number
        self.trial = trial
        self.reached = 0.0
        self.iteration = 0
        self.current = 0.0
        self.score: float | None = None
        self.perturbed_at = 0.0
        self.over = False


def _policy_file(directory: str, trial_id: str) -> str:
    """Where a trial's ancestry is."""
    return os.path.join(directory, f"pbt_policy_{trial_id}.txt")


def _write_log(directory: str, row: list[Any]) -> None:
    if not os.path.isdir(directory):
        return  # on remote storage there is no place for it
    line = json.dumps(row, default=str) + "\n"
    with open(os.path.join(directory, GLOBAL_LOG), "a", encoding="utf-8") as file:
        file.write(line)
    own, donor = _policy_file(directory, row[0]), _policy_file(directory, row[1])
    # From now on its past is the donor's.
    if os.path.exists(donor):
        shutil.copyfile(donor, own)
    elif os.path.exists(own):
        os.remove(own)
    with open(own, "a", encoding="utf-8") as file:
        file.write(line)
