"""One trial's messages and output on the experiment's display, with the trial's id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockstep.console import Display, SilentDisplay
from lockstep.console.display import Level
from lockstep.console.text import ranks_label

if TYPE_CHECKING:
    from lockstep.tune.experiment.trial import Trial

__all__ = ["TrialDisplay"]


class TrialDisplay(SilentDisplay):
    """Passes messages and output on. The experiment draws the table, so the rest is silent."""

    def __init__(self, trial: Trial, display: Display) -> None:
        self._id = trial.trial_id
        self._display = display

    def message(self, text: str, level: Level = "info") -> None:
        """Show the line with the trial's id."""
        self._display.message(f"Trial {self._id}: {text}", level)

    def output(self, ranks: tuple[int, ...], world_size: int, line: str) -> None:
        """Show the line with the trial's id, and the ranks if the trial has several workers."""
        if world_size == 1:
            self.labelled(f"[{self._id}]", line)
        else:
            self.labelled(f"[{self._id} {ranks_label(ranks, world_size)[1:]}", line)

    def labelled(self, label: str, line: str) -> None:
        """Show the line."""
        self._display.labelled(label, line)

    def pause(self) -> None:
        """Pause the experiment's display."""
        self._display.pause()

    def resume(self) -> None:
        """Resume the experiment's display."""
        self._display.resume()

    def report(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Show the report with the trial's id."""
        self._display.report(index, {"trial": self._id, **metrics})
