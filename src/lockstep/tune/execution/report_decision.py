"""The decision at a report: whether the trial continues, pauses or stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.train.driver.stop_condition import call_condition, reaches
from lockstep.train.protocol import Stop
from lockstep.tune.execution.ending import ExperimentEnding
from lockstep.tune.execution.running_trial import RunningTrial
from lockstep.tune.execution.user_calls import UserCalls
from lockstep.tune.reporting.notices import Notices
from lockstep.tune.reporting.progress import ExperimentProgress
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.stopper import Stopper

__all__ = ["ReportDecision"]


@dataclass(frozen=True)
class ReportDecision:
    """Decides at each report of each trial. The trial's workers wait for the answer."""

    _calls: UserCalls
    _ending: ExperimentEnding
    _progress: ExperimentProgress
    _notices: Notices
    _metric: str | Sequence[str] | None
    """The ``TuneConfig``'s, for a warning if the first report lacks it."""

    def stops(self, running: RunningTrial, row: dict[str, Any]) -> Stop:
        """Whether the trial's workers stop at this report, for good or for a pause."""
        trial = running.trial
        row = dict(row)  # searchers and schedulers may change it; records and callbacks must not
        trial.last_result = row
        trial.reports += 1
        self._progress.trial_reported(trial)
        self._notices.check_metric(self._metric, row)
        condition = running.stop_condition
        self._notices.check_stop(condition, row)
        # First, because a stopper may raise: then the trial fails, and nobody has counted the row.
        stop = running.stopped or bool(row.get("done")) or reaches(condition, trial.trial_id, row)
        decision = self._calls.trial_reported(trial, row)
        if isinstance(condition, Stopper) and call_condition(condition.stop_all):
            self._ending.stop_trials("the stop condition of the experiment is reached")
        # ``stopped`` may also have been set by the calls above.
        running.by_scheduler |= decision == TrialScheduler.STOP and not stop
        running.stopped = running.stopped or stop or decision == TrialScheduler.STOP
        running.pausing = decision == TrialScheduler.PAUSE
        return running.stopped or ("pause" if running.pausing else False)
