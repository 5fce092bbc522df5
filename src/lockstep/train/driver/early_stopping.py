"""EarlyStopping: a stop condition that ends a run whose metric has stopped improving."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any, Literal

from lockstep.checks import check_int, is_finite, is_number
from lockstep.metrics import look_up

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Ends a run, or under Tune a trial, whose metric does not improve any more.

    ``RunConfig(stop=EarlyStopping("val_loss", patience=3))``. Every rank stops at the same report.

    Args:
        metric: the name of a reported metric; ``"a/b"`` is a key of a nested dict. Reports without
            it do not count. NaN is no improvement.
        patience: how many reports in a row may bring no improvement.
        mode: ``"min"`` if smaller values are better, else ``"max"``.
        min_delta: what counts as an improvement: a value better than the best one by more than
            this.

    A run that resumes, after a failure or by ``restore``, counts as if it had not stopped: only
    reports that led to its checkpoint count.
    """

    def __init__(
        self,
        metric: str,
        patience: int = 3,
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
    ) -> None:
        if not isinstance(metric, str) or not metric:
            raise ValueError(f"EarlyStopping(metric={metric!r}): expected the name of a metric.")
        if mode not in ("min", "max"):
            raise ValueError(f"EarlyStopping(mode={mode!r}): expected 'min' or 'max'.")
        if not is_finite(min_delta) or min_delta < 0:
            raise ValueError(f"EarlyStopping(min_delta={min_delta!r}): expected 0 or more.")
        self.metric = metric
        self.patience = check_int(f"EarlyStopping(patience={patience!r})", patience, 1)
        self.mode = mode
        self.min_delta = min_delta
        self._histories: dict[str, _History] = {}

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Whether the run ends at this report."""
        value = look_up(result, self.metric)
        if not is_number(value):
            return False
        history = self._histories.setdefault(trial_id, _History())
        # With a sign, the smallest value is the best in both modes.
        signed = float(value) if self.mode == "min" else -float(value)
        waited = history.add(result["training_iteration"], signed, self.min_delta)
        return waited >= self.patience

    def __repr__(self) -> str:
        return (
            f"EarlyStopping({self.metric!r}, patience={self.patience}, mode={self.mode!r}, "
            f"min_delta={self.min_delta})"
        )

    def __getstate__(self) -> dict[str, Any]:
        # What runs have reported is in their journals, and is replayed when they resume.
        return {**vars(self), "_histories": {}}


class _History:
    """The reports of one run that led to its present state."""

    def __init__(self) -> None:
        self._iterations = array("q")
        self._improvements: list[tuple[int, float]] = []
        """(place in ``_iterations``, value)."""

    def add(self, iteration: int, value: float, min_delta: float) -> int:
        """Count a report; returns how many came since the last improvement."""
        # After a failure, a run repeats the reports since its checkpoint.
        while self._iterations and self._iterations[-1] >= iteration:
            self._iterations.pop()
        while self._improvements and self._improvements[-1][0] >= len(self._iterations):
            self._improvements.pop()
        self._iterations.append(iteration)
        place = len(self._iterations) - 1
        best = self._improvements[-1][1] if self._improvements else math.inf
        if value < best - min_delta:
            self._improvements.append((place, value))
        since = self._improvements[-1][0] if self._improvements else -1
        return place - since
