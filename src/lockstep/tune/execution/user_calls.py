"""Calls of code that users may write: searchers, schedulers, stoppers, naming functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lockstep.hooks import call_hook
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.schedulers.trial_scheduler import TuneController
from lockstep.tune.search import Searcher

__all__ = ["UserCalls"]

T = TypeVar("T")


class UserCalls:
    """Calls user code. The first exception in it ends the experiment, which can be restored.

    Args:
        searcher, scheduler: both are called through this object only.
        tune_controller: what the scheduler is given.
        abandon: called with the reason, in a few words, when user code has raised.

    Attributes:
        failure: the first exception.
        culprit: the code that raised it.
        scheduler_name: how messages name the scheduler.
    """

    def __init__(
        self,
        searcher: Searcher,
        scheduler: TrialScheduler,
        tune_controller: TuneController,
        abandon: Callable[[str], None],
    ) -> None:
        self._searcher = searcher
        self._scheduler = scheduler
        self._controller = tune_controller
        self._abandon = abandon
        self._searcher_name = f"the searcher {type(searcher).__name__}"
        self.scheduler_name = f"the scheduler {type(scheduler).__name__}"
        self.failure: Exception | None = None
        self.culprit = ""

    def guard(
        self, culprit: str, function: Callable[..., T], *arguments: Any, **named: Any
    ) -> T | None:
        """The function's result; None if it raised."""
        try:
            return function(*arguments, **named)
        except Exception as error:
            # Later exceptions are most likely consequences of the first.
            if self.failure is None:
                self.failure, self.culprit = error, culprit
            self._abandon(f"{self.culprit} raised {type(error).__name__}")
            return None

    def suggest(self, trial_id: str) -> Any:
        """The searcher's next config, ``Searcher.FINISHED``, or None for nothing now."""
        suggestion = self._search("suggest", trial_id=trial_id)
        return self.guard(self._searcher_name, _checked_suggestion, suggestion)

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any] | None:
        """The config with the scheduler's own values."""
        completed: dict[str, Any] | None = self._schedule("complete_config", config=config)
        return completed

    def choose_trial(self) -> Trial | None:
        """The trial that the scheduler wants to run next."""
        chosen = self._schedule("choose_trial_to_run", tune_controller=self._controller)
        return self.guard(self.scheduler_name, _checked_choice, chosen)

    def scheduler_note(self) -> str:
        """The scheduler's line for the display."""
        return str(self._schedule("debug_string") or "")

    def trial_added(self, trial: Trial) -> None:
        """Notify the scheduler of a new trial."""
        self._schedule("on_trial_add", tune_controller=self._controller, trial=trial)

    def trial_reported(self, trial: Trial, row: dict[str, Any]) -> Any:
        """Notify searcher and scheduler of a report; returns the scheduler's decision."""
        self._search("on_trial_result", trial_id=trial.trial_id, result=row)
        return self._schedule(
            "on_trial_result", tune_controller=self._controller, trial=trial, result=row
        )

    def trial_completed(self, trial: Trial) -> None:
        """Notify both of a trial that has finished, or was stopped at a report."""
        self._complete_search(trial, error=False)
        result = trial.last_result or None
        self._schedule(
            "on_trial_complete", tune_controller=self._controller, trial=trial, result=result
        )

    def trial_failed(self, trial: Trial) -> None:
        """Notify both of a trial that has failed."""
        self._complete_search(trial, error=True)
        self._schedule("on_trial_error", tune_controller=self._controller, trial=trial)

    def trial_removed(self, trial: Trial) -> None:
        """Notify both of a trial that was ended while it was pending or paused."""
        self._complete_search(trial, error=False)
        self._schedule("on_trial_remove", tune_controller=self._controller, trial=trial)

    def _complete_search(self, trial: Trial, *, error: bool) -> None:
        result = trial.last_result or None
        self._search("on_trial_complete", trial_id=trial.trial_id, result=result, error=error)

    def _search(self, hook: str, **arguments: Any) -> Any:
        call = getattr(self._searcher, hook)
        return self.guard(self._searcher_name, call_hook, call, **arguments)

    def _schedule(self, hook: str, **arguments: Any) -> Any:
        call = getattr(self._scheduler, hook)
        return self.guard(self.scheduler_name, call_hook, call, **arguments)


def _checked_suggestion(suggestion: Any) -> Any:
    if suggestion is None or suggestion == Searcher.FINISHED or isinstance(suggestion, Mapping):
        return suggestion
    raise TypeError(
        f"suggest() returned {suggestion!r}; return a config (a dict), None for nothing now, or "
        "Searcher.FINISHED"
    )


def _checked_choice(chosen: Trial | None) -> Trial | None:
    if chosen is None or chosen.status in ("PENDING", "PAUSED"):
        return chosen
    raise ValueError(
        f"choose_trial_to_run() returned {chosen!r}; return a pending or paused trial, or None"
    )
