"""The progress of an experiment: counts, the best trial so far, the rows of its table."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lockstep.checks import is_number
from lockstep.console.experiment import ExperimentStatus, TrialLine
from lockstep.metrics import AUTOMATIC_KEYS, first_of, look_up
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.tune_config import TuneConfig

__all__ = ["ExperimentProgress"]

_SHOWN = 64


class ExperimentProgress:
    """Updated by the loop, at the cost of a few dict operations a report."""

    def __init__(
        self,
        trials: Sequence[Trial],
        tune_config: TuneConfig,
        total: int | None,
        name: str,
        path: str,
    ) -> None:
        self._metric = first_of(tune_config.metric)
        self._mode = first_of(tune_config.mode)
        self._budget: Any = tune_config.time_budget_s  # TuneConfig has made a number of it
        self._total = total
        self._name, self._path = name, path
        self._started = time.monotonic()
        self._running: dict[str, Trial] = {}
        self._reports = 0
        self._counted: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.best: tuple[float, TrialLine] | None = None
        self.state = "running"
        self.resources = ""
        self.note = ""
        for trial in trials:
            self.status_changed(trial)
            self._update_best(trial)

    def status_changed(self, trial: Trial) -> None:
        """Count a trial's new status."""
        before = self._counted.get(trial.trial_id)
        if before is not None:
            self.counts[before] -= 1
        self.counts[trial.status] += 1
        if trial.over:
            self._counted.pop(trial.trial_id, None)
        else:
            self._counted[trial.trial_id] = trial.status
        if trial.status == "RUNNING":
            self._running[trial.trial_id] = trial
        else:
            self._running.pop(trial.trial_id, None)

    def trial_reported(self, trial: Trial) -> None:
        """Count a report, and compare it with the best."""
        self._reports += 1
        self._update_best(trial)

    def trial_over(self, trial: Trial) -> None:
        """Count a trial's final status, and drop the parts of its last row that no table shows."""
        self.status_changed(trial)
        trial.trim(self._metric)

    def status(self) -> ExperimentStatus:
        """A snapshot for the display."""
        best = None if self.best is None else self.best[1]
        running = list(self._running.values())[:_SHOWN]
        return ExperimentStatus(
            state=self.state,
            attempt=1,
            elapsed_s=time.monotonic() - self._started,
            reports=self._reports,
            metrics={},
            checkpoint=None,
            num_workers=1,
            name=self._name,
            path=self._path,
            counts={status: count for status, count in self.counts.items() if count},
            total=self._total,
            running=tuple(_line(trial, _reported(trial)) for trial in running),
            best=best,
            objective=f"{self._mode} {self._metric}" if self._metric else "",
            budget_s=self._budget,
            resources=self.resources,
            note=self.note,
        )

    def _update_best(self, trial: Trial) -> None:
        if self._metric is None:
            return
        value = look_up(trial.last_result, self._metric)
        if not is_number(value) or math.isnan(value):
            return
        better = self.best is None or (
            value > self.best[0] if self._mode == "max" else value < self.best[0]
        )
        if better:
            self.best = (float(value), _line(trial, {self._metric: value}))


def _line(trial: Trial, metrics: dict[str, Any]) -> TrialLine:
    parameters = {  # classes and functions by their names
        key.rpartition("/")[2]: getattr(value, "__name__", value)
        for key, value in trial.evaluated_params.items()
    }
    iteration = int(trial.last_result.get("training_iteration") or 0)
    return TrialLine(trial.trial_id, trial.status, parameters, metrics, iteration)


def _reported(trial: Trial) -> dict[str, Any]:
    return {key: value for key, value in trial.last_result.items() if key not in AUTOMATIC_KEYS}
