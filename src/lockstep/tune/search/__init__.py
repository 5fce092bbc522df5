"""Searchers: they propose the configs of trials."""

from __future__ import annotations

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


def create_searcher(search_alg: str, **kwargs: Any) -> Searcher:
    """Create the searcher of this name, ``"random"`` or ``"optuna"``, with these arguments."""
    name = search_alg.lower() if isinstance(search_alg, str) else search_alg
    if name in ("random", "variant_generator"):
        return BasicVariantGenerator(**kwargs)
    if name == "optuna":
        from lockstep.tune.search.optuna import OptunaSearch

        return OptunaSearch(**kwargs)
    raise ValueError(
        f"create_searcher({search_alg!r}): unknown; expected 'random' or 'optuna', whose samplers "
        "cover what other libraries offer."
    )
