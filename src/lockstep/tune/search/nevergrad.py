"""Nevergrad's gradient-free optimizers as a searcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.tune.search.library import LibrarySearcher, Parameter, import_library
from lockstep.tune.search.searcher import Mode

__all__ = ["NevergradSearch"]


class NevergradSearch(LibrarySearcher):
    """Proposes configs with Nevergrad. Needs the extra ``lockstep-train[nevergrad]``.

    Args:
        optimizer: a class of ``nevergrad.optimizers``, or its name: ``"NGOpt"``, ``"OnePlusOne"``,
            ``"PSO"`` and so on.
        optimizer_kwargs: its arguments, such as ``{"budget": 100}``.
        space: a dict of domains; by default the ``param_space`` of the ``Tuner``.
        metric, mode: what to optimise; by default the ``TuneConfig``'s.
        points_to_evaluate: configs (or parts of them) to try first.
        seed: makes the search reproducible.
    """

    def __init__(
        self,
        optimizer: Any = None,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
    ) -> None:
        self._library = import_library("NevergradSearch", "nevergrad", "nevergrad")
        super().__init__(space, metric, mode, points_to_evaluate, seed=seed)
        known = self._library.optimizers.registry
        if isinstance(optimizer, str) and optimizer not in known:
            raise ValueError(
                f"NevergradSearch(optimizer={optimizer!r}): unknown; give one of "
                "nevergrad.optimizers.registry, such as 'NGOpt'."
            )
        if optimizer is None:
            optimizer = "NGOpt"
        self._make = known[optimizer] if isinstance(optimizer, str) else optimizer
        self._options = {"budget": 100, **(optimizer_kwargs or {})}
        self._optimizer: Any = None
        self._candidates: dict[str, Any] = {}

    def _open(self, parameters: Sequence[Parameter]) -> None:
        p = self._library.p
        space = p.Dict(
            **{
                one.name: p.Scalar(lower=0.0, upper=1.0)
                if one.choices is None
                else p.Choice(list(range(len(one.choices))))
                for one in parameters
            }
        )
        import numpy as np

        space.random_state = np.random.RandomState(self._seed % 2**31)
        self._optimizer = self._make(parametrization=space, **self._options)
        self._candidates = {}

    def _ask(self, trial_id: str, seed: int) -> dict[str, Any]:
        self._candidates[trial_id] = candidate = self._optimizer.ask()
        return {one.name: one.decode(candidate.value[one.name]) for one in self._parameters}

    def _tell(self, trial_id: str, point: dict[str, Any], loss: float | None) -> None:
        candidate = self._candidates.pop(trial_id, None)
        if loss is None:
            return
        if candidate is None:  # one of points_to_evaluate
            shares = {one.name: one.encode(point[one.name]) for one in self._parameters}
            candidate = self._optimizer.parametrization.spawn_child(new_value=shares)
        self._optimizer.tell(candidate, loss)
