"""The model of BOHB, from the package hpbandster, as a searcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from lockstep.metrics import look_up
from lockstep.tune.search.library import (
    LibrarySearcher,
    Parameter,
    import_library,
    numpy_draws_from,
    quiet_warnings,
)
from lockstep.tune.search.sample import Categorical, Float, Integer
from lockstep.tune.search.searcher import Mode

__all__ = ["TuneBOHB"]


class TuneBOHB(LibrarySearcher):
    """Proposes configs with BOHB. Needs the extra ``lockstep-train[bohb]``.

    Use it with ``HyperBandForBOHB``. The model learns how trials compare at each number of
    iterations at which a trial was stopped, and proposes from the largest of them with enough
    results.

    Args:
        space: a dict of domains, or a ``ConfigSpace.ConfigurationSpace``; by default the
            ``param_space`` of the ``Tuner``.
        bohb_config: arguments of hpbandster's ``BOHB``, such as ``{"top_n_percent": 15}``.
        metric, mode: what to optimise; by default the ``TuneConfig``'s.
        points_to_evaluate: configs (or parts of them) to try first.
        seed: makes the search reproducible.
    """

    def __init__(
        self,
        space: Any = None,
        bohb_config: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
    ) -> None:
        self._spaces = import_library("TuneBOHB", "ConfigSpace", "bohb")
        self._library = import_library(
            "TuneBOHB", "hpbandster.optimizers.config_generators.bohb", "bohb"
        )
        if isinstance(space, self._spaces.ConfigurationSpace):
            space = {name: _domain(name, one) for name, one in dict(space).items()}
        super().__init__(space, metric, mode, points_to_evaluate, seed=seed)
        self._options = dict(bohb_config or {})
        self._space_of_bohb: Any = None
        self._model: Any = None
        self._points_of: dict[str, dict[str, Any]] = {}
        self._losses: dict[str, dict[int, float]] = {}
        self._budgets: set[int] = set()

    def _open(self, parameters: Sequence[Parameter]) -> None:
        space = self._spaces.ConfigurationSpace()
        for one in parameters:
            if one.choices is None:
                space.add(self._spaces.UniformFloatHyperparameter(one.name, 0.0, 1.0))
            elif len(one.choices) > 1:
                names = [str(index) for index in range(len(one.choices))]
                space.add(self._spaces.CategoricalHyperparameter(one.name, names))
        self._space_of_bohb = space
        with quiet_warnings():
            self._model = self._library.BOHB(space, **self._options)
        self._points_of, self._losses, self._budgets = {}, {}, set()

    def _ask(self, trial_id: str, seed: int) -> dict[str, Any]:
        self._space_of_bohb.seed(seed)
        with numpy_draws_from(seed), quiet_warnings():
            chosen, _ = self._model.get_config(None)
        return {one.name: one.decode(chosen.get(one.name, 0)) for one in self._parameters}

    def _recall(self, trial_id: str, point: dict[str, Any], seed: int) -> None:
        """Everything that is drawn for a config comes from its own seed."""

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Remember the result; learn from it if trials were stopped at this iteration."""
        value = look_up(result, str(self._metric))
        point = self._running.get(trial_id)
        if point is None or not isinstance(value, (int, float)) or value != value:
            return
        self._points_of[trial_id] = point
        budget = int(result.get("training_iteration", 1))
        loss = float(value) if self._mode == "min" else -float(value)
        self._losses.setdefault(trial_id, {})[budget] = loss
        if budget in self._budgets:
            self._learn(trial_id, budget)

    def _tell(self, trial_id: str, point: dict[str, Any], loss: float | None) -> None:
        if loss is None:
            return
        if trial_id not in self._losses:  # a known result, of a trial that never ran
            self._points_of[trial_id] = point
            self._losses[trial_id] = {1: loss}
        budget = max(self._losses[trial_id])
        if budget not in self._budgets:
            self._budgets.add(budget)
            for other, losses in self._losses.items():
                if budget in losses:
                    self._learn(other, budget)

    def _learn(self, trial_id: str, budget: int) -> None:
        values = {
            one.name: min(max(one.share_of(self._points_of[trial_id][one.name]), 0.0), 1.0)
            if one.choices is None
            else str(self._points_of[trial_id][one.name])
            for one in self._parameters
            if one.choices is None or len(one.choices) > 1
        }
        job = SimpleNamespace(
            id=trial_id,
            result={"loss": self._losses[trial_id][budget]},
            kwargs={"budget": budget, "config": values},
            exception=None,
        )
        with quiet_warnings():
            self._model.new_result(job)


def _domain(name: str, one: Any) -> Any:
    """The domain of a hyperparameter of ConfigSpace."""
    kind = type(one).__name__
    if kind == "UniformFloatHyperparameter":
        return Float(float(one.lower), float(one.upper), one.log)
    if kind == "UniformIntegerHyperparameter":
        return Integer(int(one.lower), int(one.upper), one.log)
    if kind == "CategoricalHyperparameter":
        return Categorical(list(one.choices))
    if kind == "OrdinalHyperparameter":
        return Categorical(list(one.sequence))
    if kind == "Constant":
        return one.value
    raise ValueError(
        f"TuneBOHB(space={{{name!r}: …}}): cannot read ConfigSpace's {kind}; give a domain such "
        "as tune.uniform(0, 1)."
    )
