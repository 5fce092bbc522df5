"""Population based training: the worst trials continue from the best, with changed configs."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.checks import check_positive, is_number
from lockstep.redact import redacted
from lockstep.storage.local import open_private
from lockstep.tune.schedulers.explore import check_mutations, explore, fill
from lockstep.tune.schedulers.scoring import read_score, read_time
from lockstep.tune.schedulers.trial_scheduler import Decision, TrialScheduler, TuneController

__all__ = ["PopulationBasedTraining"]

GLOBAL_LOG = "pbt_global.txt"


class PopulationBasedTraining(TrialScheduler):
    """At each ``perturbation_interval``, the worst trials exploit the best ones.

    A trial that exploits a donor continues from the donor's newest checkpoint, with the donor's
    config changed a little. So a training function has to report checkpoints, and to start from
    ``tune.get_checkpoint()``. The experiment directory records which trial exploited which, and
    with what config: ``pbt_global.txt``, and ``pbt_policy_<trial id>.txt`` with the complete
    ancestry of a trial.

    Args:
        time_attr: the result that measures a trial's progress; it must grow.
        metric, mode: how trials are compared; by default the ``TuneConfig``'s.
        perturbation_interval: the time between two comparisons of a trial.
        burn_in_period: no comparison before this time.
        hyperparam_mutations: which values change, and to what: a domain such as
            ``tune.loguniform(…)``, a list of values, a function without arguments, or a dict of
            them for a nested config. A value that a config lacks at first is drawn from it.
        quantile_fraction: the share of the trials that counts as the worst, and as the best; 0 to
            0.5.
        resample_probability: how often a value is resampled instead of perturbed.
        perturbation_factors: a number is multiplied by one of these factors; a value of a list
            changes to one of its neighbours.
        custom_explore_fn: ``config -> config``, called last.
        log_config: write the logs.
        require_attrs: a result without the metric or the time is an error.
        synch: wait at each interval until all trials have reached it.
        seed: makes the changes reproducible.
    """

    needs_metric = True

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
            if not is_number(value) or not 0 <= value <= most:
                raise ValueError(f"{owner}({name}={value!r}): expected a number from 0 to {most}.")
        if not perturbation_factors:
            raise ValueError(
                f"{owner}(perturbation_factors={perturbation_factors!r}): give at least one "
                "factor, such as (1.2, 0.8)."
            )
        for factor in perturbation_factors:
            check_positive(owner, "perturbation_factors", factor)
        if custom_explore_fn is not None and not callable(custom_explore_fn):
            raise TypeError(
                f"{owner}(custom_explore_fn={custom_explore_fn!r}): expected a function of "
                "the config."
            )
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
        self._next_sync = max(perturbation_interval, burn_in_period)
        self._perturbations = 0
        by_iteration = time_attr == "training_iteration"
        # A donor needs a checkpoint at each comparison; of other times it is not known in advance.
        self.checkpoint_frequency = max(1, int(perturbation_interval)) if by_iteration else 1

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take the metric, the mode, and how many trials there will be."""
        taken = super().set_search_properties(metric, mode, **spec)
        self._population = spec.get("num_trials")
        return taken

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """Draw the mutated values that the config lacks."""
        self._filled += 1
        return fill(config, self._mutations, self._random("config", self._filled))

    def on_trial_add(self, tune_controller: TuneController, trial: Any) -> None:
        """Add the trial to the population."""
        self._members[trial.trial_id] = _Member(len(self._members), trial)

    def on_trial_result(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any]
    ) -> Decision:
        """At each interval: continue, or exploit a better trial."""
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
        if self._synch and self._all_arrived():
            # Only in a replay: the trials were compared when the last one had paused.
            self._set_next_sync()
        member.reached = reached
        member.iteration = int(result.get("training_iteration", 0))
        if self._synch:
            return self._arrive(member, score)
        if reached < self._burn_in or reached - member.perturbed_at < self._interval:
            return self.CONTINUE
        member.perturbed_at, member.score = reached, score
        worst, best = self._quantiles()
        if member in worst and self._exploit_best(tune_controller, member, best):
            return self.PAUSE
        # With fewer slots than trials, all must advance together to be compared at similar times.
        return self.PAUSE if self._others_wait(tune_controller) else self.CONTINUE

    def on_trial_complete(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any] | None
    ) -> None:
        """Leave the trial out of comparisons; trials that wait for all do not wait for it."""
        self._members[trial.trial_id].over = True

    def on_trial_error(self, tune_controller: TuneController, trial: Any) -> None:
        """As for a trial that has finished."""
        self.on_trial_complete(tune_controller, trial, None)

    on_trial_remove = on_trial_error

    def choose_trial_to_run(self, tune_controller: TuneController) -> Any | None:
        """The waiting trial with the least progress, so that all advance together."""
        chosen = None
        unfinished = tune_controller.get_live_trials()
        running = any(trial.status == "RUNNING" for trial in unfinished)
        if self._synch and not running and self._all_arrived():
            self._synchronise(tune_controller)
        for trial in unfinished:
            if trial.status not in ("PENDING", "PAUSED"):
                continue
            member = self._members[trial.trial_id]
            if self._synch and trial.status == "PAUSED" and member.reached >= self._next_sync:
                continue  # waits for the others
            if chosen is None or member.reached < chosen.reached:
                chosen = member
        return None if chosen is None else chosen.trial

    def debug_string(self) -> str:
        """How often a trial exploited another."""
        return f"PopulationBasedTraining: {self._perturbations} perturbation(s)"

    def _others_wait(self, tune_controller: TuneController) -> bool:
        """Whether a trial should pause for another that waits, or will be added."""
        if self._population is not None and len(self._members) < self._population:
            return True
        return any(t.status in ("PENDING", "PAUSED") for t in tune_controller.get_live_trials())

    def _arrive(self, member: _Member, score: float) -> Decision:
        """Pause at the interval's end. The last trial pauses, too.

        The checkpoint of a report is committed after the decision on the report. So the trials are
        compared when all have paused: the last one may be the donor.
        """
        if member.reached < self._next_sync:
            return self.CONTINUE
        member.score = score
        if self._all_arrived() and self._unfinished() == [member]:
            self._set_next_sync()  # there is no other to compare with
            return self.CONTINUE
        return self.PAUSE

    def _unfinished(self) -> list[_Member]:
        return [member for member in self._members.values() if not member.over]

    def _all_arrived(self) -> bool:
        if self._population is not None and len(self._members) < self._population:
            return False
        unfinished = self._unfinished()
        return bool(unfinished) and all(m.reached >= self._next_sync for m in unfinished)

    def _synchronise(self, tune_controller: TuneController) -> None:
        """All trials have paused: let the worst exploit the best."""
        worst, best = self._quantiles()
        for member in worst:
            self._exploit_best(tune_controller, member, best)
        self._set_next_sync()

    def _set_next_sync(self) -> None:
        furthest = max(member.reached for member in self._unfinished())
        while self._next_sync <= furthest:
            self._next_sync += self._interval

    def _exploit_best(
        self, tune_controller: TuneController, member: _Member, best: list[_Member]
    ) -> bool:
        candidates = [other for other in best if other.trial.checkpoint is not None]
        if not candidates:
            return False
        # The generator depends on who exploits and when, not on earlier draws, so a replay after a
        # restore draws the same.
        who = member.trial.trial_id if self._seed is None else member.number
        rng = self._random(who, member.reached)
        donor = rng.choice(candidates)
        config = self._explored(donor.trial, member.reached, rng)
        row = [
            member.trial.trial_id,
            donor.trial.trial_id,
            member.iteration,
            donor.iteration,
            dict(donor.trial.config),
            config,
        ]
        applied = tune_controller.exploit(member.trial, config, donor.trial.checkpoint)
        self._perturbations += 1
        member.score = None  # of the old weights and config
        if self._log and applied:
            _write_log(os.path.dirname(str(member.trial.path)), row)
        return True

    def _explored(self, donor: Any, reached: float, rng: random.Random) -> dict[str, Any]:
        """The config of a trial that exploits this donor."""
        return explore(
            donor.config, self._mutations, self._resample, self._factors, self._custom, rng
        )

    def _quantiles(self) -> tuple[list[_Member], list[_Member]]:
        """The worst and the best of the unfinished trials that have a score."""
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


@dataclass(eq=False)
class _Member:
    """A trial of the population."""

    number: int
    trial: Any
    reached: float = 0.0
    iteration: int = 0
    score: float | None = None
    perturbed_at: float = 0.0
    over: bool = False


def _policy_file(directory: str, trial_id: str) -> str:
    """The file with a trial's ancestry."""
    return os.path.join(directory, f"pbt_policy_{trial_id}.txt")


def _write_log(directory: str, row: list[Any]) -> None:
    if not os.path.isdir(directory):
        return  # remote storage cannot append to a file
    line = json.dumps(redacted(row), default=str) + "\n"
    _append(os.path.join(directory, GLOBAL_LOG), line)
    own, donor = _policy_file(directory, row[0]), _policy_file(directory, row[1])
    # The donor's ancestry replaces the trial's own.
    if os.path.exists(donor):
        shutil.copy(donor, own)  # with its mode
    elif os.path.exists(own):
        os.remove(own)
    _append(own, line)


def _append(path: str, line: str) -> None:
    with open(path, "a", encoding="utf-8", opener=open_private) as file:
        file.write(line)
