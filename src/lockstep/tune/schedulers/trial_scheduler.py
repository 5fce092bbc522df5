"""TrialScheduler: decides at each report whether a trial continues, and which one runs next."""

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
    """What a scheduler sees of a trial. A scheduler must not change it."""

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
    """What a scheduler may call."""

    def get_trials(self) -> Sequence[Any]:
        """Every trial so far."""

    def get_live_trials(self) -> Sequence[Any]:
        """The pending, running and paused trials, in the order they were added."""

    def stop_trial(self, trial: Any) -> None:
        """End a trial that is pending, paused, or about to pause.

        A running trial ends when ``on_trial_result`` returns ``STOP``.
        """

    def exploit(self, trial: Any, config: Mapping[str, Any], checkpoint: Any) -> bool:
        """Let a trial continue with this config, from that checkpoint.

        The trial is paused, about to pause, or the one for which ``PAUSE`` is about to be returned.
        The checkpoint may be another trial's: it is protected from that trial's ``num_to_keep``
        until it is copied. ``checkpoint=None`` is the trial's own newest one.

        Returns:
            Whether the trial will. False while a restore replays earlier events.
        """


class TrialScheduler:
    """Decides at each report whether a trial continues, and which waiting trial runs next.

    The contract:

    - ``set_search_properties`` is called once, before anything else. Then, for each trial:
      ``complete_config`` (not for a restored trial), ``on_trial_add``, ``on_trial_result`` for each
      report, and once ``on_trial_complete`` (the trial finished, or was stopped, also at this
      report), ``on_trial_error`` (it failed) or ``on_trial_remove`` (it was stopped while it was
      not running).
    - Every call comes from one thread, one at a time. ``on_trial_result`` is called while the
      workers wait for the answer, so it should be quick. The decision reaches all ranks of the
      trial at this report.
    - ``choose_trial_to_run`` is called when there is room, and after all possible new trials were
      added: if no trial is pending or running then, no other will be added.
    - ``PAUSE`` frees the workers. When the trial is chosen again it resumes from its newest
      checkpoint, or starts over if it has none. A ``Trainable`` class saves when it pauses; a
      training function has to report checkpoints.
    - A scheduler's state is never pickled. ``Tuner.restore`` recreates the scheduler, replays all
      earlier events to it, and ignores its decisions meanwhile. So decisions should depend on the
      scheduler's arguments and on the events, and on nothing else.
    """

    CONTINUE: Decision = "CONTINUE"
    PAUSE: Decision = "PAUSE"
    STOP: Decision = "STOP"

    needs_metric = False
    """Whether the scheduler compares trials, and so needs a metric and a mode."""
    checkpoint_frequency = 0
    """After how many steps ``Trainable`` classes save, if the ``CheckpointConfig`` does not say."""

    # For subclasses that do not call super().__init__().
    _metric: str | None = None
    _mode: str | None = None

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        check_objective(type(self).__name__, metric, mode)
        self._metric = metric
        self._mode = mode

    @property
    def metric(self) -> str | None:
        """The metric by which trials are compared."""
        return self._metric

    @property
    def mode(self) -> str | None:
        """``"min"`` or ``"max"``: which values of the metric are better."""
        return self._mode

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take the ``TuneConfig``'s metric and mode if the scheduler has none of its own.

        A scheduler that was used before starts over, with its original arguments.

        Args:
            metric, mode: the ``TuneConfig``'s.
            spec: ``num_trials``: how many trials there will be; None if not known.

        Returns:
            False if the scheduler has others; then the ``Tuner`` raises.

        Raises:
            ValueError: the scheduler needs a metric and a mode, and there is none.
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
            # A user's scheduler that cannot be copied keeps its state when it is used twice.
            with contextlib.suppress(TypeError):
                unused = copy.deepcopy(vars(self))
        else:
            vars(self).clear()
            vars(self).update(copy.deepcopy(unused))
        vars(self)["_unused"] = unused

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config of a new trial, completed with the scheduler's own values."""
        return config

    def on_trial_add(self, tune_controller: TuneController, trial: Any) -> None:
        """A new trial was added; it is pending."""

    def on_trial_result(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any]
    ) -> Decision:
        """A trial reported: returns whether it continues, pauses or stops."""
        return self.CONTINUE

    def on_trial_complete(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any] | None
    ) -> None:
        """A trial has finished, or was stopped at a report."""

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
        """One line on the scheduler's progress, for the display."""
        return type(self).__name__


class FIFOScheduler(TrialScheduler):
    """Runs the trials in the order they were added, each to its end."""

    def __init__(self) -> None:
        super().__init__()
