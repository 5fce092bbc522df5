"""A searcher that has only so many trials at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from lockstep.checks import is_int
from lockstep.tune.search.searcher import Searcher
from lockstep.tune.search.wrapped import WrappedSearcher

__all__ = ["ConcurrencyLimiter"]


class ConcurrencyLimiter(WrappedSearcher):
    """Lets a searcher have only so many trials at a time, so that it learns from each.

    Args:
        searcher: the searcher.
        max_concurrent: how many.
        batch: tell the searcher of its trials, and go on, only when all of them are over.
    """

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        if not is_int(max_concurrent) or max_concurrent < 1:
            raise ValueError(
                f"ConcurrencyLimiter(max_concurrent={max_concurrent!r}): expected a whole number, "
                "1 or more."
            )
        super().__init__(searcher)
        self.max_concurrent = max_concurrent
        self.batch = batch
        self._live: dict[str, tuple[Mapping[str, Any] | None, bool] | None] = {}

    def set_search_properties(
        self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Pass them on; no trial is live."""
        self._live = {}
        return super().set_search_properties(metric, mode, config, **spec)

    def num_trials(self, num_samples: int) -> int | None:
        """As many as the searcher makes of them."""
        return self.searcher.num_trials(num_samples)

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal["FINISHED"] | None:
        """The searcher's next config, None if there are enough trials already."""
        if len(self._live) >= self.max_concurrent:
            return None
        config = self.searcher.suggest(trial_id)
        if isinstance(config, dict):
            self._live[trial_id] = None
        return config

    def recall(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Count it, and pass it on."""
        self._live[trial_id] = None
        self.searcher.recall(trial_id, config)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Make room for another one; in a batch, when all are over."""
        if trial_id not in self._live:
            return
        if not self.batch:
            del self._live[trial_id]
            self.searcher.on_trial_complete(trial_id, result, error)
            return
        self._live[trial_id] = (result, error)
        if all(ended is not None for ended in self._live.values()):
            batch, self._live = self._live, {}
            for ended_id, ended in batch.items():
                assert ended is not None
                self.searcher.on_trial_complete(ended_id, *ended)
