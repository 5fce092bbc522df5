"""Gaussian processes of the package bayesian-optimization as a searcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.checks import check_int
from lockstep.tune.search.library import LibrarySearcher, Parameter, import_library
from lockstep.tune.search.sample import uniform
from lockstep.tune.search.searcher import Mode

__all__ = ["BayesOptSearch"]


class BayesOptSearch(LibrarySearcher):
    """Proposes configs with ``bayes_opt``. Needs the extra ``lockstep-train[bayesopt]``.

    The process sees every hyperparameter as a number from 0 to 1.

    Args:
        space: a dict of domains, or of ``(lower, upper)`` pairs; by default the ``param_space`` of
            the ``Tuner``.
        metric, mode: what to optimise; by default the ``TuneConfig``'s.
        points_to_evaluate: configs (or parts of them) to try first.
        utility_kwargs: ``kind`` (``"ucb"``, ``"ei"``, ``"poi"``), ``kappa``, ``xi``: which points
            are worth trying.
        random_state: makes the search reproducible.
        random_search_steps: how many random configs come first.
        verbose, skip_duplicate, patience: accepted and without effect.
        analysis: an ``ExperimentAnalysis`` whose trials the process learns from first.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        utility_kwargs: Mapping[str, Any] | None = None,
        random_state: int | None = 42,
        random_search_steps: int = 10,
        verbose: int = 0,
        patience: int = 5,
        skip_duplicate: bool = True,
        analysis: Any = None,
    ) -> None:
        self._library = import_library("BayesOptSearch", "bayes_opt", "bayesopt")
        check_int(
            f"BayesOptSearch(random_search_steps={random_search_steps!r})", random_search_steps, 0
        )
        if space is not None:
            space = {
                key: uniform(*value) if isinstance(value, tuple) and len(value) == 2 else value
                for key, value in space.items()
            }
        super().__init__(space, metric, mode, points_to_evaluate, seed=random_state)
        self._utility = {"kind": "ucb", "kappa": 2.576, "xi": 0.0, **(utility_kwargs or {})}
        self._random_steps = random_search_steps
        self._analysis = analysis
        self._asked = 0
        self._results: list[tuple[dict[str, float], float]] = []

    def _open(self, parameters: Sequence[Parameter]) -> None:
        self._asked = 0
        self._results = []
        for trial in getattr(self._analysis, "trials", ()):
            value = trial.last_result.get(self._metric)
            point = self._point_of(trial.config, strict=False)
            if isinstance(value, (int, float)) and len(point) == len(parameters):
                self._tell("", point, float(value) if self._mode == "min" else -float(value))

    def _ask(self, trial_id: str, seed: int) -> dict[str, Any]:
        self._asked += 1
        optimizer, utility = self._optimizer(seed)
        if self._asked <= self._random_steps or not self._results:
            shares = optimizer.space.array_to_params(optimizer.space.random_sample())
        else:
            for result, target in self._results:
                optimizer.register(params=result, target=target)
            shares = optimizer.suggest(*utility)
        return {one.name: one.at(float(shares[one.name])) for one in self._parameters}

    def _recall(self, trial_id: str, point: dict[str, Any], seed: int) -> None:
        self._asked += 1  # the process is fitted to all results each time

    def _tell(self, trial_id: str, point: dict[str, Any], loss: float | None) -> None:
        if loss is not None:
            shares = {one.name: one.share_of(point[one.name]) for one in self._parameters}
            self._results.append((shares, -loss))

    def _optimizer(self, seed: int) -> tuple[Any, tuple[Any, ...]]:
        """An optimizer without results, and the arguments of its ``suggest``."""
        options: dict[str, Any] = {
            "f": None,
            "pbounds": {one.name: (0.0, 1.0) for one in self._parameters},
            "random_state": seed,
            "allow_duplicate_points": True,
            "verbose": 0,
        }
        kind, kappa, xi = (self._utility[name] for name in ("kind", "kappa", "xi"))
        if hasattr(self._library, "acquisition"):  # from version 2 on
            acquisition = self._library.acquisition
            made = {
                "ucb": lambda: acquisition.UpperConfidenceBound(kappa=kappa),
                "ei": lambda: acquisition.ExpectedImprovement(xi=xi),
                "poi": lambda: acquisition.ProbabilityOfImprovement(xi=xi),
            }[kind]()
            return self._library.BayesianOptimization(acquisition_function=made, **options), ()
        utility = self._library.UtilityFunction(kind=kind, kappa=kappa, xi=xi)
        return self._library.BayesianOptimization(**options), (utility,)
