"""Ax's adaptive experimentation as a searcher."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lockstep.metrics import look_up
from lockstep.tune.search.library import (
    LibrarySearcher,
    Parameter,
    import_library,
    quiet_warnings,
)
from lockstep.tune.search.sample import Categorical, Float, Integer, Normal
from lockstep.tune.search.searcher import Mode

__all__ = ["AxSearch"]

_LOSS = "loss_to_minimise"
"""What Ax calls the metric: it reads objectives as formulas, which have no slashes."""


class AxSearch(LibrarySearcher):
    """Proposes configs with Ax. Needs the extra ``lockstep-train[ax]``.

    Ax starts with points that fill the space, then fits Gaussian processes. Before it changes over
    it waits for results, so fewer trials run at that time.

    Args:
        space: a dict of domains, or Ax's own list of parameters; by default the ``param_space`` of
            the ``Tuner``.
        metric, mode: what to optimise; by default the ``TuneConfig``'s.
        points_to_evaluate: configs (or parts of them) to try first.
        parameter_constraints: such as ``["x1 + x2 <= 2.0"]``.
        outcome_constraints: such as ``["memory <= 1.25"]``, of metrics that trials report.
        ax_client: an ``AxClient`` with an experiment: its parameters, objective and constraints.
        seed: makes the search reproducible.
        strategy: arguments of ``Client.configure_generation_strategy`` of Ax, such as
            ``initialization_budget=8``.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        parameter_constraints: Sequence[str] | None = None,
        outcome_constraints: Sequence[str] | None = None,
        ax_client: Any = None,
        seed: int | None = None,
        **strategy: Any,
    ) -> None:
        self._client_class = import_library("AxSearch", "ax.api.client", "ax").Client
        self._configs = import_library("AxSearch", "ax.api.configs", "ax")
        self._waits = (
            import_library("AxSearch", "ax.exceptions.core", "ax").DataRequiredError,
            import_library(
                "AxSearch", "ax.exceptions.generation_strategy", "ax"
            ).MaxParallelismReachedException,
        )
        if ax_client is not None:
            if space is not None or parameter_constraints or outcome_constraints:
                raise ValueError(
                    "AxSearch(ax_client=…) has its own space and constraints; leave the others out."
                )
            experiment = ax_client.experiment
            space = [_described(one) for one in experiment.parameters.values()]
            wanted = experiment.optimization_config
            metric = metric or wanted.objective.metric_names[0]
            mode = mode or ("min" if wanted.objective.minimize else "max")
            if experiment.search_space.parameter_constraints or wanted.outcome_constraints:
                raise ValueError(
                    "AxSearch(ax_client=…): the client's constraints cannot be read back; give "
                    "space=, parameter_constraints= and outcome_constraints= instead."
                )
        if space is not None and not isinstance(space, Mapping):
            space = {str(one["name"]): _domain(one) for one in space}
        super().__init__(space, metric, mode, points_to_evaluate, seed=seed)
        self._parameter_constraints = list(parameter_constraints or ())
        self._outcome_constraints = list(outcome_constraints or ())
        self._strategy = copy.deepcopy(strategy)
        self._client: Any = None
        self._indices: dict[str, int] = {}
        self._outcomes: Mapping[str, Any] = {}

    def _open(self, parameters: Sequence[Parameter]) -> None:
        # A line for each trial otherwise.
        import_library("AxSearch", "ax.utils.common.logger", "ax").set_ax_logger_levels(
            logging.WARNING
        )
        self._indices = {}
        self._client = self._client_class(random_seed=self._seed)
        with quiet_warnings():
            self._client.configure_experiment(
                parameters=[self._for_ax(one) for one in parameters if not _is_fixed(one)],
                parameter_constraints=self._parameter_constraints,
            )
            self._client.configure_optimization(
                objective=f"-{_LOSS}", outcome_constraints=self._outcome_constraints
            )
            self._client.configure_generation_strategy(
                **{"initialization_random_seed": self._seed, **self._strategy}
            )

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal["FINISHED"] | None:
        """Ax's next config; None while it waits for the results of running trials."""
        try:
            return super().suggest(trial_id)
        except self._waits:
            return None

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell Ax the result."""
        self._outcomes = result or {}
        super().on_trial_complete(trial_id, result, error)

    def _ask(self, trial_id: str, seed: int) -> dict[str, Any]:
        with quiet_warnings():
            found = self._client.get_next_trials(max_trials=1)
        if not found:
            raise self._waits[0]("no trial yet")
        [(self._indices[trial_id], chosen)] = found.items()
        return {
            one.name: one.at(0.0) if _is_fixed(one) else _from_ax(one, chosen[_name(one)])
            for one in self._parameters
        }

    def _tell(self, trial_id: str, point: dict[str, Any], loss: float | None) -> None:
        index = self._indices.pop(trial_id, None)
        if index is None:  # one of points_to_evaluate
            if loss is None:
                return
            index = self._client.attach_trial(
                {
                    _name(one): _to_ax(one, point[one.name])
                    for one in self._parameters
                    if not _is_fixed(one)
                }
            )
        outcomes = {name: look_up(self._outcomes, name) for name in self._constrained()}
        if loss is None or not all(isinstance(one, (int, float)) for one in outcomes.values()):
            self._client.mark_trial_failed(index)
            return
        with quiet_warnings():
            self._client.complete_trial(index, raw_data={_LOSS: loss, **outcomes})

    def _constrained(self) -> list[str]:
        """The metrics of the outcome constraints: ``memory`` of ``memory <= 1.25``."""
        words = " ".join(self._outcome_constraints).replace("*", " ").split()
        return list(dict.fromkeys(word for word in words if word.isidentifier()))

    def _for_ax(self, one: Parameter) -> Any:
        """A parameter as Ax describes one."""
        if one.choices is not None:
            return self._configs.ChoiceParameterConfig(
                name=_name(one),
                values=list(range(len(one.choices))),
                parameter_type="int",
                is_ordered=False,
            )
        low, high = 0.0, 1.0
        if isinstance(one.domain, (Float, Integer)):
            low, high = one.domain.lower, one.domain.upper
        return self._configs.RangeParameterConfig(
            name=_name(one),
            bounds=(low, high),
            parameter_type="int" if isinstance(one.domain, Integer) else "float",
            scaling="log" if one.log else None,
        )


def _name(one: Parameter) -> str:
    """A name that Ax can read in a formula."""
    return one.name.replace("/", "__")


def _is_fixed(one: Parameter) -> bool:
    if one.choices is not None:
        return len(one.choices) == 1
    return isinstance(one.domain, (Float, Integer)) and one.domain.lower == one.domain.upper


def _from_ax(one: Parameter, value: Any) -> Any:
    if one.choices is not None:
        return int(value)
    return one.at(float(value if isinstance(one.domain, Normal) else one.share_of(value)))


def _to_ax(one: Parameter, value: Any) -> Any:
    return one.share_of(value) if isinstance(one.domain, Normal) else value


def _domain(one: Mapping[str, Any]) -> Any:
    """The domain of a parameter as Ax's list of parameters describes it."""
    kind = one.get("type", "range")
    if kind == "fixed":
        return one["value"]
    if kind == "choice":
        return Categorical(list(one["values"]))
    low, high = one["bounds"]
    log = bool(one.get("log_scale", False))
    whole = isinstance(low, int) and isinstance(high, int)
    if one.get("value_type", "int" if whole else "float") == "int":
        return Integer(int(low), int(high), log)
    return Float(float(low), float(high), log)


def _described(one: Any) -> dict[str, Any]:
    """A parameter of an experiment of Ax, as the list of parameters describes it."""
    if hasattr(one, "lower"):
        whole = one.parameter_type.name == "INT"
        return {
            "name": one.name,
            "bounds": [one.lower, one.upper],
            "value_type": "int" if whole else "float",
            "log_scale": one.log_scale,
        }
    if hasattr(one, "values"):
        return {"name": one.name, "type": "choice", "values": one.values}
    return {"name": one.name, "type": "fixed", "value": one.value}
