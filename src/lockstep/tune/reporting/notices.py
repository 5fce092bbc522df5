"""What an experiment tells its user besides the table, each thing once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.console import Display
from lockstep.metrics import AUTOMATIC_KEYS, look_up
from lockstep.tune.execution.resources import ResourcePool, ResourceRequest
from lockstep.tune.experiment.trial import Trial

__all__ = ["Notices"]


class Notices:
    """Messages on a display. ``once`` and ``problem`` may be called from any thread."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._told: set[str] = set()

    def once(self, kind: str, text: str) -> None:
        """A warning that is given the first time only."""
        if kind not in self._told:
            self._told.add(kind)
            self._display.message(text, "warning")

    def problem(self, trial: Trial, text: str | None) -> None:
        """Something went wrong with a trial's files; None: nothing did."""
        if text is not None:
            self._display.message(f"Trial {trial.trial_id}: {text}", "warning")

    def stopping(self, why: str) -> None:
        """The experiment ends early."""
        self._display.message(f"Stopping: {why}.")

    def failed(self, trial: Trial, text: str) -> None:
        """A trial has failed."""
        self._display.message(f"Trial {trial.trial_id} failed: {text}", "warning")

    def starts_over(self, trial: Trial) -> None:
        """A trial goes on that has no checkpoint."""
        self.once(
            "no checkpoint",
            f"Trial {trial.trial_id} has no checkpoint to go on from, so it starts over; "
            "report checkpoints to keep what trials have learned.",
        )

    def too_large(self, need: ResourceRequest, machine: ResourcePool) -> None:
        """A trial needs more than there is."""
        self.once(
            "too large",
            f"A trial needs {need}, more than the {machine.cpus:g} CPU(s) and "
            f"{len(machine.gpus)} GPU(s) there are: such trials run one at a time.",
        )

    def check_metric(self, metric: str | Sequence[str] | None, row: Mapping[str, Any]) -> None:
        """Look whether the first report has what is searched for."""
        if metric is None or "metric" in self._told:
            return
        self._told.add("metric")
        names = [metric] if isinstance(metric, str) else metric
        missing = [name for name in names if look_up(row, name) is None]
        if missing:
            found = ", ".join(repr(key) for key in row if key not in AUTOMATIC_KEYS)
            self._display.message(
                f"TuneConfig(metric={metric!r}): the first report has no {missing[0]!r}, only "
                f"{found or 'no metrics'}; report it, or name another.",
                "warning",
            )
