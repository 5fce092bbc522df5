"""Which trials exist: those of a restored experiment, and new ones from the searcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.tune.execution.starter import TrialStarter
from lockstep.tune.execution.user_calls import UserCalls
from lockstep.tune.experiment.experiment import Experiment
from lockstep.tune.experiment.replay import RestoredTrials
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.reporting.progress import ExperimentProgress
from lockstep.tune.search.space import merge

__all__ = ["TrialQueue"]


@dataclass
class TrialQueue:
    """The trials of one experiment. Used from the loop's thread."""

    _experiment: Experiment
    _starter: TrialStarter
    _calls: UserCalls
    _progress: ExperimentProgress
    trials: list[Trial]
    """Every trial so far: at first the trials of a restored experiment."""
    _constants: Mapping[str, Any]
    """Merged under each suggestion."""
    _total: int | None
    """How many trials there will be; None: not known."""
    _all_suggested: bool = False
    searcher_waits: bool = False
    """The searcher's last answer was "nothing now"; after a report it may have a suggestion."""

    def __post_init__(self) -> None:
        self.unfinished = {trial.trial_id: trial for trial in self.trials if not trial.over}
        """Trial id → the trials that are pending, running or paused, in order."""
        # A journal on remote storage may lack its newest lines, and with them trials in between.
        taken = {trial.index for trial in self.trials}
        self._gaps = [index for index in range(max(taken, default=0)) if index not in taken]
        """Numbers below the highest that no trial has. New trials get these first."""

    def restore(self, restored: RestoredTrials) -> None:
        """Record what became of the trials of a restored experiment, and add the missing ones."""
        for trial in restored.restarted:
            self._starter.choose_directory(trial)
        for trial in restored.abandoned:
            self._experiment.record_status(trial)
        for index, config in restored.unrecorded:
            self._add(index, config)

    @property
    def needs_suggestion(self) -> bool:
        """Whether no trial is pending and the searcher may have another."""
        return not self._all_suggested and all(
            trial.status != "PENDING" for trial in self.unfinished.values()
        )

    def suggest(self) -> None:
        """Ask the searcher for a config, and add the trial if there is one."""
        if self._total is not None and len(self.trials) >= self._total:
            self._all_suggested = True
            return
        index = self._gaps[0] if self._gaps else len(self.trials)
        config = self._calls.suggest(self._experiment.trial_id(index))
        self.searcher_waits = config is None
        if isinstance(config, str):  # Searcher.FINISHED
            self._all_suggested = True
        elif config is not None:
            self._add(index, config)

    def close(self, trial: Trial, status: Any, *, by_scheduler: bool = False) -> None:
        """Record a trial's final status, and whether the scheduler has ended the trial."""
        trial.status = status
        self.unfinished.pop(trial.trial_id, None)
        more: dict[str, Any] = {} if trial.error is None else {"error": trial.error}
        if by_scheduler:
            more["by"] = "scheduler"
        self._experiment.record_status(trial, **more)
        self._progress.trial_over(trial)

    def _add(self, index: int, suggestion: Mapping[str, Any]) -> None:
        """Add a trial, unless user code raises on the way."""
        config = self._calls.complete_config(merge(self._constants, suggestion))
        if config is None:
            return
        trial = self._calls.guard("naming a trial", self._starter.new_trial, index, config)
        if trial is None:
            return
        if index in self._gaps:
            self._gaps.remove(index)
        # Before the scheduler is notified, which may ask for all trials.
        self.trials.append(trial)
        self.unfinished[trial.trial_id] = trial
        self._progress.status_changed(trial)
        self._calls.trial_added(trial)
