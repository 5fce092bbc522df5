"""Searchers: they propose the configs of trials."""

from __future__ import annotations

import importlib
from typing import Any

from lockstep.tune.search.basic_variant import BasicVariantGenerator
from lockstep.tune.search.concurrency_limiter import ConcurrencyLimiter
from lockstep.tune.search.repeater import Repeater
from lockstep.tune.search.sample import grid_search
from lockstep.tune.search.searcher import Searcher

__all__ = [
    "BasicVariantGenerator",
    "ConcurrencyLimiter",
    "Repeater",
    "Searcher",
    "create_searcher",
    "grid_search",
]


_OF_LIBRARIES = {
    "optuna": "OptunaSearch",
    "hyperopt": "HyperOptSearch",
    "bayesopt": "BayesOptSearch",
    "nevergrad": "NevergradSearch",
    "ax": "AxSearch",
    "zoopt": "ZOOptSearch",
    "bohb": "TuneBOHB",
    "hebo": "HEBOSearch",
}


def create_searcher(search_alg: str, **kwargs: Any) -> Searcher:
    """Create the searcher of this name with these arguments.

    The names are ``"random"``, ``"optuna"``, ``"hyperopt"``, ``"bayesopt"``, ``"nevergrad"``,
    ``"ax"``, ``"zoopt"``, ``"bohb"`` and ``"hebo"``.
    """
    name = search_alg.lower() if isinstance(search_alg, str) else search_alg
    if name in ("random", "variant_generator"):
        return BasicVariantGenerator(**kwargs)
    if name not in _OF_LIBRARIES:
        raise ValueError(
            f"create_searcher({search_alg!r}): unknown; expected one of 'random', "
            f"{', '.join(map(repr, _OF_LIBRARIES))}."
        )
    module = importlib.import_module(f"lockstep.tune.search.{name}")
    searcher: Searcher = getattr(module, _OF_LIBRARIES[name])(**kwargs)
    return searcher
