"""HEBO's heteroscedastic Bayesian optimisation as a searcher."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lockstep.tune.search.library import (
    LibrarySearcher,
    Parameter,
    numpy_draws_from,
    quiet_warnings,
)
from lockstep.tune.search.searcher import Mode

__all__ = ["HEBOSearch"]


class HEBOSearch(LibrarySearcher):
    """Proposes configs with HEBO, by Gaussian processes.

    Needs ``pip install 'HEBO>=0.3.5' 'pymoo>=0.6,<0.6.2'``.

    Args:
        space: a dict of domains; by default the ``param_space`` of the ``Tuner``.
        metric, mode: what to optimise; by default the ``TuneConfig``'s.
        points_to_evaluate: configs (or parts of them) to try first.
        evaluated_rewards: the known results of ``points_to_evaluate``.
        random_state_seed: makes the search reproducible.
        max_concurrent: without effect: ``TuneConfig(max_concurrent_trials=…)`` limits the trials.
        options: more arguments of ``hebo.optimizers.hebo.HEBO``.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        evaluated_rewards: Sequence[float] | None = None,
        random_state_seed: int | None = None,
        max_concurrent: int = 8,
        **options: Any,
    ) -> None:
        _import_hebo()
        super().__init__(
            space, metric, mode, points_to_evaluate, evaluated_rewards, random_state_seed
        )
        self._options = options
        self._optimizer: Any = None
        self._asked: dict[str, Any] = {}

    def _open(self, parameters: Sequence[Parameter]) -> None:
        hebo, design_space = _import_hebo()
        # Numbers as shares of their domains, which have logarithms, steps and normal distributions.
        described = [
            {"name": one.name, "type": "num", "lb": 0.0, "ub": 1.0}
            if one.choices is None
            else {"name": one.name, "type": "cat", "categories": list(range(len(one.choices)))}
            for one in parameters
        ]
        options = {"scramble_seed": self._seed % 2**31, **self._options}
        with quiet_warnings():
            self._optimizer = hebo(design_space().parse(described), **options)
        self._asked = {}

    def _ask(self, trial_id: str, seed: int) -> dict[str, Any]:
        with quiet_warnings(), numpy_draws_from(seed), _torch_draws_from(seed):
            found = self._optimizer.suggest(n_suggestions=1)
        self._asked[trial_id] = found
        row = found.iloc[0]
        return {one.name: one.decode(row[one.name]) for one in self._parameters}

    def _tell(self, trial_id: str, point: dict[str, Any], loss: float | None) -> None:
        import numpy as np
        import pandas as pd

        asked = self._asked.pop(trial_id, None)
        if loss is None:
            return
        if asked is None:  # one of points_to_evaluate
            values = {one.name: one.encode(point[one.name]) for one in self._parameters}
            asked = pd.DataFrame([values])
        with quiet_warnings():
            self._optimizer.observe(asked, np.array([[loss]]))


def _import_hebo() -> tuple[Any, Any]:
    try:
        with quiet_warnings():
            optimizers = importlib.import_module("hebo.optimizers.hebo")
            spaces = importlib.import_module("hebo.design_space.design_space")
    except ImportError as error:
        raise ImportError(
            f"HEBOSearch needs HEBO, which cannot be imported ({error}): pip install "
            "'HEBO>=0.3.5' 'pymoo>=0.6,<0.6.2'.",
            name=error.name,
        ) from None
    return optimizers.HEBO, spaces.DesignSpace


@contextmanager
def _torch_draws_from(seed: int) -> Iterator[None]:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
