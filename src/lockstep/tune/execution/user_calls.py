"""Asking what users may write themselves: searchers, schedulers, stoppers, functions of a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lockstep.tune.search import Searcher

__all__ = ["GuardedCalls", "checked_choice", "checked_suggestion"]


class GuardedCalls:
    """Calls them. One that raises ends the experiment, which may be gone on with later.

    Args:
        give_up: called with what happened, in a few words.

    Attributes:
        failure: what the first of them raised.
        culprit: which of them that was.
    """

    def __init__(self, give_up: Callable[[str], None]) -> None:
        self._give_up = give_up
        self.failure: Exception | None = None
        self.culprit = ""

    def __call__(self, whom: str, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, None if there is none because it raised."""
        try:
            return question(*arguments)
        except Exception as error:
            if self.failure is None:
                self.failure, self.culprit = error, whom
            self._give_up(f"{self.culprit} raised {type(error).__name__}")
            return None


def checked_suggestion(suggestion: Any) -> Any:
    """What ``suggest`` returned, if it is something it may return."""
    if suggestion is None or suggestion == Searcher.FINISHED or isinstance(suggestion, Mapping):
        return suggestion
    raise TypeError(
        f"suggest() returned {suggestion!r}; return a config (a dict), None for nothing now, or "
        "Searcher.FINISHED"
    )


def checked_choice(chosen: Any) -> Any:
    """What ``choose_trial_to_run`` returned, if that can be run."""
    if chosen is None or chosen.status in ("PENDING", "PAUSED"):
        return chosen
    raise ValueError(
        f"choose_trial_to_run() returned {chosen!r}; return a pending or paused trial, or None"
    )
