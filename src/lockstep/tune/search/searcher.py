"""Searcher: proposes the configs of trials. A subclass implements ``suggest``."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Literal

__all__ = ["Searcher", "check_objective"]

Mode = Literal["min", "max"]


class Searcher:
    """Proposes configs, and learns from their results.

    The contract:

    - ``set_search_properties`` is called once for an experiment, before anything else; it discards
      the state of an earlier experiment. Then, for each trial:
      ``suggest`` (or ``recall``), ``on_trial_result`` for each report, ``on_trial_complete`` once.
    - Every call comes from one thread, one at a time, and should be quick.
    - A searcher's state is never pickled. ``Tuner.restore`` recreates the searcher and replays all
      earlier events: ``recall`` instead of ``suggest``, then results and completions. So
      suggestions should depend on the searcher's arguments and on the events, and on nothing else.

    Args:
        metric: the name of the metric to optimise; by default the ``TuneConfig``'s. A list if the
            searcher supports several objectives.
        mode: ``"min"`` or ``"max"``, one for each metric.
    """

    FINISHED = "FINISHED"
    """``suggest`` returns this when no config is left to propose."""

    # For subclasses that do not call super().__init__().
    _own_objective: tuple[Any, Any] = (None, None)
    _metric: Any = None
    _mode: Any = None

    def __init__(
        self,
        metric: str | Sequence[str] | None = None,
        mode: Mode | Sequence[Mode] | None = None,
    ) -> None:
        check_objective(type(self).__name__, metric, mode)
        self._own_objective = (metric, mode)
        self._metric = metric
        self._mode = mode

    @property
    def metric(self) -> Any:
        """The metric to optimise."""
        return self._metric

    @property
    def mode(self) -> Any:
        """``"min"`` or ``"max"``: which values of the metric are better."""
        return self._mode

    def set_search_properties(
        self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take the ``Tuner``'s values where the searcher has none of its own.

        Args:
            metric, mode: the ``TuneConfig``'s.
            config: the ``param_space``.
            spec: more of the ``TuneConfig``: ``num_samples``.

        Returns:
            Whether ``config`` was taken as the space to search. If not (as here), domains in
            ``config`` are an error, and its constants are merged under each suggestion.
        """
        check_objective("TuneConfig", metric, mode)
        own_metric, own_mode = self._own_objective
        self._metric = metric if own_metric is None else own_metric
        self._mode = mode if own_mode is None else own_mode
        return False

    def num_trials(self, num_samples: int) -> int | None:
        """How many trials ``num_samples`` makes; None: as many as there is time for."""
        return None if num_samples < 0 else num_samples

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal["FINISHED"] | None:
        """The config of a new trial; None: nothing now, call again after the next event."""
        raise NotImplementedError

    def recall(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Replaces ``suggest`` on a restore: this config was suggested for this trial."""

    def get_state(self) -> dict[str, Any]:
        """Everything that the searcher knows, to be pickled."""
        return dict(vars(self))

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what ``get_state`` of a searcher of this class returned."""
        vars(self).update(state)

    def save(self, checkpoint_path: str | os.PathLike[str]) -> None:
        """Write the searcher's state into a file, for a search outside of a ``Tuner``.

        ``Tuner.restore`` needs no such file.
        """
        import cloudpickle

        with open(checkpoint_path, "wb") as file:
            cloudpickle.dump(self.get_state(), file)

    def restore(self, checkpoint_path: str | os.PathLike[str]) -> None:
        """Read the state from a file that ``save`` wrote. This executes code of the file."""
        with open(checkpoint_path, "rb") as file:
            self.set_state(pickle.load(file))

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """A trial reported."""

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """A trial is over. ``result`` is the last one, None if the trial never reported."""


def check_objective(owner: str, metric: Any, mode: Any) -> None:
    """Raise unless the metric is a name (or a list of names) and the mode fits to it."""
    metrics = metric if isinstance(metric, (list, tuple)) else [metric]
    if metric is not None and (
        not metrics or not all(isinstance(name, str) and name for name in metrics)
    ):
        raise ValueError(f"{owner}(metric={metric!r}): expected the name of a reported metric.")
    modes = mode if isinstance(mode, (list, tuple)) else [mode]
    if mode is not None and (not modes or not all(one in ("min", "max") for one in modes)):
        raise ValueError(f"{owner}(mode={mode!r}): expected 'min' or 'max'.")
    if isinstance(mode, (list, tuple)) and metric is not None and len(modes) != len(metrics):
        raise ValueError(
            f"{owner}(metric={metric!r}, mode={mode!r}): give one mode for each metric."
        )
