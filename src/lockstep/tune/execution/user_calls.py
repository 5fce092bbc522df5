"""Calls of code that users may write: searchers, schedulers, stoppers, naming functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

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

    def guard(self, culprit: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """The function's result; None if it raised."""
        try:
            return function(*arguments)
        except Exception as error:
            if self.failure is None:
                self.failure, self.culprit = error, culprit
            self._abandon(f"{self.culprit} raised {type(error).__name__}")
            return None

    def suggest(self, trial_id: str) -> Any:
        """The searcher's next config, ``Searcher.FINISHED``, or None for nothing now."""
        suggest = self._searcher.suggest
        return self.guard(self._searcher_name, lambda: _checked_suggestion(suggest(trial_id)))

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any] | None:
        """The config with the scheduler's own values."""
        return self.guard(self.scheduler_name, self._scheduler.complete_config, config)

    def choose_trial(self) -> Trial | None:
        """The trial that the scheduler wants to run next."""
        choose = self._scheduler.choose_trial_to_run
        return self.guard(self.scheduler_name, lambda: _checked_choice(choose(self._controller)))

    def scheduler_note(self) -> str:
        """The scheduler's line for the display."""
        return str(self.guard(self.scheduler_name, self._scheduler.debug_string) or "")

    def trial_added(self, trial: Trial) -> None:
        """Notify the scheduler of a new trial."""
        added = self._scheduler.on_trial_add
        self.guard(self.scheduler_name, added, self._controller, trial)

    def trial_reported(self, trial: Trial, row: dict[str, Any]) -> Any:
        """Notify searcher and scheduler of a report; returns the scheduler's decision."""
        self.guard(self._searcher_name, self._searcher.on_trial_result, trial.trial_id, row)
        decide = self._scheduler.on_trial_result
        return self.guard(self.scheduler_name, decide, self._controller, trial, row)

    def trial_completed(self, trial: Trial) -> None:
        """Notify both of a trial that has finished, or was stopped at a report."""
        self._complete_search(trial, error=False)
        complete, result = self._scheduler.on_trial_complete, trial.last_result or None
        self.guard(self.scheduler_name, complete, self._controller, trial, result)

    def trial_failed(self, trial: Trial) -> None:
        """Notify both of a trial that has failed."""
        self._complete_search(trial, error=True)
        self.guard(self.scheduler_name, self._scheduler.on_trial_error, self._controller, trial)

    def trial_removed(self, trial: Trial) -> None:
        """Notify both of a trial that was ended while it was pending or paused."""
        self._complete_search(trial, error=False)
        self.guard(self.scheduler_name, self._scheduler.on_trial_remove, self._controller, trial)

    def _complete_search(self, trial: Trial, *, error: bool) -> None:
        complete, result = self._searcher.on_trial_complete, trial.last_result or None
        self.guard(self._searcher_name, complete, trial.trial_id, result, error)


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
