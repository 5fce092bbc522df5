"""PB2: population based training whose changes a Gaussian process chooses."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.checks import is_finite
from lockstep.tune.schedulers.explore import explore
from lockstep.tune.schedulers.pbt import PopulationBasedTraining
from lockstep.tune.schedulers.scoring import read_score, read_time
from lockstep.tune.schedulers.trial_scheduler import Decision, TuneController
from lockstep.tune.search.sample import Integer, uniform

__all__ = ["PB2"]

_CANDIDATES = 512
_WINDOW = 200
"""How many of the last observations the process is fitted to: a fit takes cubic time."""
_KAPPA = 2.0
_LENGTHS = (0.1, 0.2, 0.5, 1.0)
_NOISE = 0.01


class PB2(PopulationBasedTraining):
    """Population based bandits: like ``PopulationBasedTraining``, for small populations.

    A Gaussian process learns how much trials improved in an interval, given the time, where they
    stood and their hyperparameters. A trial that exploits a donor gets the values within
    ``hyperparam_bounds`` that promise the largest improvement.

    Args:
        time_attr, metric, mode, perturbation_interval, quantile_fraction, log_config,
            require_attrs, synch, custom_explore_fn: see ``PopulationBasedTraining``.
        hyperparam_bounds: ``{"lr": [1e-4, 1e-1]}``: the smallest and the largest value. Between
            two integers it chooses integers if the trial has one. A dict of them for a nested
            config. A value that a config lacks at first is drawn evenly.
        seed: makes the changes reproducible.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        seed: int | None = None,
    ) -> None:
        if not hyperparam_bounds:
            raise ValueError(
                f"PB2(hyperparam_bounds={hyperparam_bounds!r}) would change nothing; name a "
                "hyperparameter, such as {'lr': [1e-4, 1e-1]}."
            )
        self._bounds = dict(_flat_bounds(hyperparam_bounds, ()))
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            perturbation_interval=perturbation_interval,
            hyperparam_mutations=_domains(hyperparam_bounds),
            quantile_fraction=quantile_fraction,
            resample_probability=0.0,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
            seed=seed,
        )
        self._last: dict[str, tuple[float, float]] = {}
        self._observed: list[tuple[list[float], float]] = []

    def on_trial_result(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any]
    ) -> Decision:
        """Remember how much the trial improved, and decide as ``PopulationBasedTraining``."""
        reached = read_time(result, self._time_attr)
        score = read_score(result, self.metric, self.mode)
        if reached is not None and score is not None and is_finite(score):
            at, before = self._last.get(trial.trial_id, (reached, score))
            if reached - at >= self._interval or trial.trial_id not in self._last:
                self._last[trial.trial_id] = (reached, score)
            if reached - at >= self._interval:
                row = [at, before, *self._shares(trial.config)]
                self._observed.append((row, (score - before) / (reached - at)))
        decision = super().on_trial_result(tune_controller, trial, result)
        member = self._members[trial.trial_id]
        if decision == self.PAUSE and member.score is None:
            self._last.pop(trial.trial_id, None)  # it continues from another trial's weights
        return decision

    def debug_string(self) -> str:
        """How often a trial exploited another."""
        return f"PB2: {self._perturbations} perturbation(s)"

    def _explored(self, donor: Any, reached: float, rng: random.Random) -> dict[str, Any]:
        config = _copied(donor.config)
        shares = self._most_promising(donor, reached, rng)
        for (path, (low, high)), share in zip(self._bounds.items(), shares, strict=True):
            inside = config
            for key in path[:-1]:
                inside = inside[key]
            value = low + share * (high - low)
            whole = isinstance(inside.get(path[-1]), int) and isinstance(low, int)
            inside[path[-1]] = round(value) if whole else value
        return explore(config, {}, 0.0, (1.0,), self._custom, rng)  # only custom_explore_fn

    def _most_promising(self, donor: Any, reached: float, rng: random.Random) -> list[float]:
        """Where between its bounds each value should be, from 0 to 1."""
        drawn = [[rng.random() for _ in self._bounds] for _ in range(_CANDIDATES)]
        if len(self._observed) < 2:
            return drawn[0]
        import numpy as np

        rows = np.array([row for row, _ in self._observed[-_WINDOW:]])
        gains = np.array([gain for _, gain in self._observed[-_WINDOW:]])
        stands = self._last.get(donor.trial_id, (reached, float(rows[-1, 1])))[1]
        asked = np.array([[reached, stands, *shares] for shares in drawn])
        low, high = rows[:, :2].min(axis=0), np.maximum(rows[:, :2].max(axis=0), asked[0, :2])
        span = np.where(high > low, high - low, 1.0)
        rows[:, :2], asked[:, :2] = (rows[:, :2] - low) / span, (asked[:, :2] - low) / span
        spread = float(gains.std()) or 1.0
        mean, deviation = _predict(rows, (gains - gains.mean()) / spread, asked)
        return drawn[int(np.argmax(mean + _KAPPA * deviation))]

    def _shares(self, config: Mapping[str, Any]) -> list[float]:
        shares = []
        for path, (low, high) in self._bounds.items():
            value: Any = config
            for key in path:
                value = value[key]
            shares.append((float(value) - low) / (high - low))
        return shares


def _predict(rows: Any, values: Any, asked: Any) -> tuple[Any, Any]:
    """Mean and deviation of a Gaussian process at the asked rows.

    The length scale is the likeliest of a few: each costs one factorisation, and a scheduler has to
    be quick.
    """
    import numpy as np

    best: tuple[float, Any, Any] | None = None
    for length in _LENGTHS:
        kernel = _similarity(rows, rows, length) + _NOISE * np.eye(len(rows))
        factor = np.linalg.cholesky(kernel)
        half = np.linalg.solve(factor, values)
        likelihood = -0.5 * float(half @ half) - float(np.log(np.diag(factor)).sum())
        if best is None or likelihood > best[0]:
            across = np.linalg.solve(factor, _similarity(rows, asked, length))
            variance = np.maximum(1.0 - (across**2).sum(axis=0), 0.0)
            best = (likelihood, half @ across, np.sqrt(variance))
    assert best is not None
    return best[1], best[2]


def _similarity(one: Any, other: Any, length: float) -> Any:
    import numpy as np

    distances = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=2)
    return np.exp(-distances / (2 * length**2))


def _flat_bounds(
    bounds: Mapping[str, Any], path: tuple[str, ...]
) -> list[tuple[tuple[str, ...], tuple[float, float]]]:
    found = []
    for key, value in bounds.items():
        if isinstance(value, Mapping):
            found += _flat_bounds(value, (*path, key))
            continue
        pair = isinstance(value, Sequence) and len(value) == 2 and all(map(is_finite, value))
        if not pair or value[0] >= value[1]:
            raise ValueError(
                f"PB2(hyperparam_bounds={{{key!r}: {value!r}}}): expected the smallest and the "
                "largest value, such as [1e-4, 1e-1]."
            )
        found.append(((*path, key), (value[0], value[1])))
    return found


def _domains(bounds: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds as domains, from which values that a config lacks are drawn."""
    domains: dict[str, Any] = {}
    for key, value in bounds.items():
        if isinstance(value, Mapping):
            domains[key] = _domains(value)
        elif all(isinstance(bound, int) for bound in value):
            domains[key] = Integer(value[0], value[1])
        else:
            domains[key] = uniform(*value)
    return domains


def _copied(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _copied(value) if isinstance(value, dict) else value for key, value in config.items()
    }
