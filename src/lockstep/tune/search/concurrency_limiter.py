"""A limit for the number of a searcher's concurrent trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from lockstep.checks import check_int
from lockstep.tune.search.searcher import Searcher
from lockstep.tune.search.wrapped import WrappedSearcher

__all__ = ["ConcurrencyLimiter"]


class ConcurrencyLimiter(WrappedSearcher):
    """Limits a searcher's concurrent trials, so that it learns from each before the next.

    Args:
        searcher: the searcher.
        max_concurrent: how many trials may be unfinished.
        batch: report trials to the searcher, and start others, only when all of a batch are over.
    """

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        check_int(f"ConcurrencyLimiter(max_concurrent={max_concurrent!r})", max_concurrent, 1)
        super().__init__(searcher)
        self.max_concurrent = max_concurrent
        self.batch = batch
        self._unfinished: dict[str, tuple[Mapping[str, Any] | None, bool] | None] = {}

    def set_search_properties(
        self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Pass them on, and forget all trials."""
        self._unfinished = {}
        return super().set_search_properties(metric, mode, config, **spec)

    def num_trials(self, num_samples: int) -> int | None:
        """The wrapped searcher's number."""
        return self.searcher.num_trials(num_samples)

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal["FINISHED"] | None:
        """The searcher's next config; None at the limit."""
        if len(self._unfinished) >= self.max_concurrent:
            return None
        config = self.searcher.suggest(trial_id)
        if isinstance(config, dict):
            self._unfinished[trial_id] = None
        return config

    def recall(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Count the trial, and pass it on."""
        self._unfinished[trial_id] = None
        self.searcher.recall(trial_id, config)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Allow another trial; in a batch, when all are over."""
        if trial_id not in self._unfinished:
            return
        if not self.batch:
            del self._unfinished[trial_id]
            self._complete(trial_id, result, error)
            return
        self._unfinished[trial_id] = (result, error)
        if all(ended is not None for ended in self._unfinished.values()):
            batch, self._unfinished = self._unfinished, {}
            for ended_id, ended in batch.items():
                assert ended is not None
                self._complete(ended_id, *ended)
