"""The base class of searchers that wrap a searcher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.hooks import call_hook
from lockstep.tune.search.searcher import Searcher

__all__ = ["WrappedSearcher"]


class WrappedSearcher(Searcher):
    """Passes everything on to the wrapped searcher."""

    def __init__(self, searcher: Searcher) -> None:
        if not isinstance(searcher, Searcher):
            raise TypeError(
                f"{type(self).__name__}(searcher={searcher!r}): expected a Searcher, such as "
                "OptunaSearch()."
            )
        super().__init__(searcher.metric, searcher.mode)
        self.searcher = searcher

    def set_search_properties(
        self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Pass them on."""
        taken = call_hook(
            self.searcher.set_search_properties, metric=metric, mode=mode, config=config, **spec
        )
        self._metric, self._mode = self.searcher.metric, self.searcher.mode
        return taken

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Pass it on."""
        call_hook(self.searcher.on_trial_result, trial_id=trial_id, result=result)

    def _complete(self, trial_id: str, result: Mapping[str, Any] | None, error: bool) -> None:
        """Notify the wrapped searcher that a trial is over."""
        complete = self.searcher.on_trial_complete
        call_hook(complete, trial_id=trial_id, result=result, error=error)
