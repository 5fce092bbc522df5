"""TrialScheduler: what decides at each report whether a trial goes on, and which one runs next."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from lockstep.tune.search.searcher import check_objective

__all__ = [
    "Decision",
    "FIFOScheduler",
    "ScheduledTrial",
    "TrialScheduler",
    "TuneController",
]

Decision = Literal["CONTINUE", "PAUSE", "STOP"]


class ScheduledTrial(Protocol):
    """What a scheduler sees of a trial. It changes nothing in it."""

    trial_id: str
    config: dict[str, Any]
    status: str
    """``"PENDING"``, ``"RUNNING"``, ``"PAUSED"``, ``"TERMINATED"`` or ``"ERROR"``."""
    last_result: Any
    """The newest row; an empty dict (or None) before the first."""

    @property
    def checkpoint(self) -> Any:
        """The newest checkpoint, None if there is none."""


class TuneController(Protocol):
    """What a scheduler may ask and order."""

    def get_trials(self) -> Sequence[Any]:
        """Every trial there has been."""

    def get_live_trials(self) -> Sequence[Any]:
        """Those that are not over: pending, running and paused, in the order they were added."""

    def stop_trial(self, trial: Any) -> None:
        """End a trial that is pending, paused, or on its way to a pause.

        One that runs is ended by returning ``STOP`` at its report.
        """

    def exploit(self, trial: Any, config: Mapping[str, Any], checkpoint: Any) -> bool:
        """Let it go on with this config, from that checkpoint.

        The trial is paused, on its way to a pause, or the one for which ``PAUSE`` is about to be
        returned. The checkpoint may be another run's, whose ``num_to_keep`` lets it go soon: it is
        taken at once. ``checkpoint=None`` is the trial's own newest.

        Returns:
            Whether it will. False while a restore replays what had happened.
        """


class TrialScheduler:
    """Decides at each report whether a trial goes on, and which of the waiting ones runs next.

    The contract:

    - ``set_search_properties`` is called once, before anything else. Then, for each trial:
      ``complete_config`` (not when it is restored), ``on_trial_add``, ``on_trial_result`` for each
      report, and once ``on_trial_complete`` (it finished, or was stopped, also at this very
      report), ``on_trial_error`` (it failed) or ``on_trial_remove`` (it was stopped while it did
      not run).
    - Every call comes from one thread, one at a time. ``on_trial_result`` is called while the
      workers wait for their answer, so it should be quick. Its decision reaches all ranks of the
      trial at this very report.
    - ``choose_trial_to_run`` is asked when there is room, and after as many new trials were added
      as may be: when nothing is pending or running then, no other trial will come.
    - ``PAUSE`` frees the workers. When the trial is chosen again it goes on from its newest
      checkpoint, or starts over if it has none.
    - Nothing of it is pickled. ``Tuner.restore`` makes it anew and replays what had happened;
      what it decides then is ignored. So its decisions should depend on its arguments and on
      what it was told, and on nothing else.
    """

    CONTINUE: Decision = "CONTINUE"
    PAUSE: Decision = "PAUSE"
    STOP: Decision = "STOP"

    needs_metric = False
    """Whether it compares trials, so that there has to be a metric and a mode."""
    pauses = False
    """Whether it ever returns ``PAUSE``: ``Trainable`` classes then save when they are stopped."""
    checkpoint_frequency = 0
    """How often it needs ``Trainable`` classes to save if they are not told otherwise."""

    # For subclasses that do not call super().__init__().
    _metric: str | None = None
    _mode: str | None = None

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        check_objective(type(self).__name__, metric, mode)
        self._metric = metric
        self._mode = mode

    @property
    def metric(self) -> str | None:
        """What is compared."""
        return self._metric

    @property
    def mode(self) -> str | None:
        """Whether little or much of it is wanted."""
        return self._mode

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take the ``TuneConfig``'s metric and mode where the scheduler has none of its own.

        One that was used before starts over, with what it was made with.

        Args:
            metric, mode: the ``TuneConfig``'s.
            spec: ``num_trials``: how many trials there will be, None if that is not known.

        Returns:
            False where it has others, which the ``Tuner`` then says.

        Raises:
            ValueError: it needs a metric and a mode, and there is none.
        """
        self._start_over()
        for own, given in ((self._metric, metric), (self._mode, mode)):
            if own is not None and given is not None and own != given:
                return False
        self._metric = self._metric or metric
        self._mode = self._mode or mode
        if self.needs_metric and (self._metric is None or self._mode is None):
            raise ValueError(
                f"{type(self).__name__}(metric={self._metric!r}, mode={self._mode!r}) cannot "
                "compare trials; give metric and mode to it or to the TuneConfig."
            )
        return True

    def _start_over(self) -> None:
        unused: dict[str, Any] | None = vars(self).pop("_unused", None)
        if unused is None:
            # An own scheduler may hold what cannot be copied: that one is not used twice.
            with contextlib.suppress(TypeError):
                unused = copy.deepcopy(vars(self))
        else:
            vars(self).clear()
            vars(self).update(copy.deepcopy(unused))
        vars(self)["_unused"] = unused

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config of a new trial, with what the scheduler itself has to say on it."""
        return config

    def on_trial_add(self, tune_controller: TuneController, trial: Any) -> None:
        """A trial exists now; it is pending."""

    def on_trial_result(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any]
    ) -> Decision:
        """A trial reported. What now?"""
        return self.CONTINUE

    def on_trial_complete(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any] | None
    ) -> None:
        """A trial has finished or was stopped."""

    def on_trial_error(self, tune_controller: TuneController, trial: Any) -> None:
        """A trial has failed, for good."""

    def on_trial_remove(self, tune_controller: TuneController, trial: Any) -> None:
        """A trial was ended while it was pending or paused."""

    def choose_trial_to_run(self, tune_controller: TuneController) -> Any | None:
        """A pending or paused trial to run now: the first pending one, then the first paused."""
        paused = None
        for trial in tune_controller.get_live_trials():
            if trial.status == "PENDING":
                return trial
            if trial.status == "PAUSED" and paused is None:
                paused = trial
        return paused

    def debug_string(self) -> str:
        """One line on where it stands, for the display."""
        return type(self).__name__


class FIFOScheduler(TrialScheduler):
    """Runs the trials in the order they come, each to its end."""

    def __init__(self) -> None:
        super().__init__()
