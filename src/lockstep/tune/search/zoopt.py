"""ZOOpt's racing search as a searcher."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lockstep.tune.search.library import (
    LibrarySearcher,
    Parameter,
    import_library,
    numpy_draws_from,
)
from lockstep.tune.search.searcher import Mode

__all__ = ["ZOOptSearch"]

_FAILED = math.inf
_PRECISION = 1e-10


class ZOOptSearch(LibrarySearcher):
    """Proposes configs with ZOOpt's ASRacos. Needs the extra ``lockstep-train[zoopt]``.

    Args:
        algo: ``"asracos"``, the only one (``"sracos"`` is another name of it).
        budget: how many trials there will be; ZOOpt plans with it. By default ``num_samples``.
        dim_dict: the older name of ``space``.
        space: a dict of domains; by default the ``param_space`` of the ``Tuner``.
        metric, mode: what to optimise; by default the ``TuneConfig``'s.
        points_to_evaluate: configs (or parts of them) to try first.
        parallel_num: how many trials ZOOpt lets run after its first ones; by default, any number.
        seed: makes the search reproducible.
        options: more arguments of ``zoopt.Parameter``.
    """

    def __init__(
        self,
        algo: str = "asracos",
        budget: int | None = None,
        dim_dict: Mapping[str, Any] | None = None,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        parallel_num: int | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self._library = import_library("ZOOptSearch", "zoopt", "zoopt")
        if algo.lower() not in ("asracos", "sracos"):
            raise ValueError(f"ZOOptSearch(algo={algo!r}): expected 'asracos'.")
        if dim_dict is not None and space is not None:
            raise ValueError("ZOOptSearch(dim_dict=…, space=…) are one argument; give one of them.")
        own = dim_dict if space is None else space
        super().__init__(own, metric, mode, points_to_evaluate, seed=seed)
        self._budget = budget
        self._num_samples = 100
        self._parallel = parallel_num
        self._options = options
        self._optimizer: Any = None
        self._solutions: dict[str, Any] = {}
        self._known: list[Any] = []

    def set_search_properties(
        self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take the space, unless the searcher has its own, and the number of trials."""
        if spec.get("num_samples", -1) > 0:
            self._num_samples = spec["num_samples"]
        return super().set_search_properties(metric, mode, config, **spec)

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal["FINISHED"] | None:
        """ZOOpt's next config; None while it waits for the results of running trials."""
        try:
            return super().suggest(trial_id)
        except _Waits:
            return None

    def _open(self, parameters: Sequence[Parameter]) -> None:
        kinds = self._library.ValueType
        dimension = self._library.Dimension2(
            [
                (kinds.CONTINUOUS, [0.0, 1.0], _PRECISION)
                if one.choices is None
                else (kinds.GRID, list(range(len(one.choices))))
                for one in parameters
            ]
        )
        budget = max(self._budget or self._num_samples, 2)
        algorithm = import_library(
            "ZOOptSearch", "zoopt.algos.opt_algorithms.racos.sracos", "zoopt"
        ).SRacosTune
        self._optimizer = algorithm(
            dimension=dimension,
            parameter=self._library.Parameter(budget=budget, **self._options),
            parallel_num=self._parallel or 2**31,
        )
        self._solutions = {}
        self._known = []

    def _ask(self, trial_id: str, seed: int) -> dict[str, Any]:
        optimizer = self._optimizer
        with numpy_draws_from(seed):
            solution = optimizer.suggest()
            if solution is None and optimizer.complete_num >= self._first:
                # ZOOpt waits for its first trials here, also if all of them are over.
                optimizer.semaphore = 1
                solution = optimizer.suggest()
            if solution is None:
                raise _Waits
            if solution == "FINISHED":  # nothing new in its region: look anywhere
                draw = optimizer.get_objective().get_dim()
                solution = optimizer.get_objective().construct_solution(draw.rand_sample())
        self._solutions[trial_id] = solution
        return {
            one.name: one.decode(value)
            for one, value in zip(self._parameters, solution.get_x(), strict=True)
        }

    def _tell(self, trial_id: str, point: dict[str, Any], loss: float | None) -> None:
        optimizer = self._optimizer
        value = _FAILED if loss is None else loss
        solution = self._solutions.pop(trial_id, None)
        if solution is not None:
            optimizer.complete(solution, value)
        elif loss is not None:  # one of points_to_evaluate
            shares = [one.encode(point[one.name]) for one in self._parameters]
            known = optimizer.get_objective().construct_solution(shares)
            known.set_value(value)
            self._known.append(known)
        while self._known and optimizer.complete_num >= self._first:
            optimizer.update_classifier(self._known.pop())

    @property
    def _first(self) -> int:
        return int(self._optimizer.get_parameters().get_train_size())


class _Waits(Exception):
    """ZOOpt needs results before it can propose more."""
