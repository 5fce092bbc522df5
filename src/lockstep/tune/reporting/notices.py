"""Messages of an experiment to its user, besides the table of trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.config import StopCondition
from lockstep.console import Display
from lockstep.console.warn_once import WarnOnce
from lockstep.metrics import AUTOMATIC_KEYS, look_up
from lockstep.train.driver.notes import missing_stop_note
from lockstep.tune.experiment.trial import Trial

__all__ = ["Notices"]


class Notices:
    """Messages on a display. ``once`` and ``problem`` may be called from any thread.

    Attributes:
        once: shows a warning, the first time that there is one of its kind.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self.once = WarnOnce(display)
        self._metric_checked = False
        self._stop_checked = False

    def problem(self, trial: Trial, text: str | None) -> None:
        """Show what went wrong with a trial's files; None: nothing did."""
        if text is not None:
            self._display.message(f"Trial {trial.trial_id}: {text}", "warning")

    def stopping(self, why: str) -> None:
        """Show that the experiment ends early."""
        self._display.message(f"Stopping: {why}.")

    def failed(self, trial: Trial, text: str) -> None:
        """Show that a trial has failed."""
        self._display.message(f"Trial {trial.trial_id} failed: {text}", "warning")

    def starts_over(self, trial: Trial) -> None:
        """Warn of a trial that resumes without a checkpoint."""
        self.once(
            "no checkpoint",
            f"Trial {trial.trial_id} has no checkpoint to resume from, so it starts over; "
            "report checkpoints to keep what trials have learned.",
        )

    def makes_no_progress(self, trial: Trial, scheduler: str) -> None:
        """Warn of a trial that pauses again before it has saved anything new."""
        self.once(
            "no progress",
            f"Trial {trial.trial_id} was resumed and is paused again by {scheduler} without a new "
            "checkpoint in between: it repeats the same steps, maybe for ever. Report a checkpoint "
            "at each report at which the scheduler may pause the trial, or pause it later.",
        )

    def too_large(self, request: str, cpus: float, gpus: int) -> None:
        """Warn of a trial that requests more than there is."""
        self.once(
            "too large",
            f"A trial needs {request}, more than the {cpus:g} CPU(s) and {gpus} GPU(s) there are: "
            "such trials run one at a time.",
        )

    def check_stop(self, stop: StopCondition | None, row: Mapping[str, Any]) -> None:
        """Warn if the first report lacks what ``RunConfig(stop=…)`` names."""
        if not self._stop_checked:
            self._stop_checked = True
            note = missing_stop_note(stop, row)
            if note is not None:
                self._display.message(note, "warning")

    def check_metric(self, metric: str | Sequence[str] | None, row: Mapping[str, Any]) -> None:
        """Warn if the first report lacks the metric that is searched for."""
        if metric is None or self._metric_checked:
            return
        self._metric_checked = True
        names = [metric] if isinstance(metric, str) else metric
        missing = [name for name in names if look_up(row, name) is None]
        if missing:
            found = ", ".join(repr(key) for key in row if key not in AUTOMATIC_KEYS)
            self._display.message(
                f"TuneConfig(metric={metric!r}): the first report has no {missing[0]!r}, only "
                f"{found or 'no metrics'}; report it, or name another.",
                "warning",
            )
