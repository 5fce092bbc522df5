"""The best value of a run so far, and how much of the run is left. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from lockstep.checks import is_number
from lockstep.config import RunConfig
from lockstep.metrics import look_up

__all__ = ["Best", "BestSoFar", "planned"]

_SMALLER = frozenset(("loss", "error", "perplexity", "mse", "rmse", "mae"))
_LARGER = frozenset(("acc", "accuracy", "auc", "f1", "reward", "score", "precision", "recall"))


class Best(NamedTuple):
    """The best value of a metric, and the number of the report that had it."""

    metric: str
    value: float
    report: int


class BestSoFar:
    """Follows one metric: the one that scores checkpoints or stops the run.

    Without such a metric it is the first metric of a report whose name says which is better: a
    loss, an accuracy. Most runs have one; no other metric is guessed at.
    """

    def __init__(self, run_config: RunConfig) -> None:
        scored = run_config.checkpoint_config.checkpoint_score_attribute
        order = run_config.checkpoint_config.checkpoint_score_order
        stop = run_config.stop
        self._metric: str | None = scored or getattr(stop, "metric", None)
        self._mode: str = (order if scored else getattr(stop, "mode", None)) or "max"
        self.best: Best | None = None

    def update(self, report: int, metrics: Mapping[str, Any]) -> None:
        """Compare a report's metrics with the best."""
        if self._metric is None:
            self._choose(metrics)
            if self._metric is None:
                return
        # At every report: a plain key and a float, the usual ones, first.
        value = metrics.get(self._metric)
        if type(value) is not float:
            value = look_up(metrics, self._metric)
            if not is_number(value):
                return
        best = self.best
        if best is None:
            better = not math.isnan(value)
        elif self._mode == "max":
            better = value > best.value  # never true of a NaN
        else:
            better = value < best.value
        if better:
            self.best = Best(self._metric, value, report)

    def _choose(self, metrics: Mapping[str, Any]) -> None:
        for key, value in metrics.items():
            mode = _better(key) if is_number(value) else None
            if mode is not None:
                self._metric, self._mode = key, mode
                return


@lru_cache(maxsize=4096)  # asked for every metric of every report, until one is found
def _better(name: str) -> Literal["min", "max"] | None:
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return "min" if words & _SMALLER else "max" if words & _LARGER else None


def planned(stop: object) -> tuple[int | None, float | None]:
    """How many reports and how many seconds the stop condition allows; None: it does not say."""
    if not isinstance(stop, Mapping):
        return None, None
    reports, seconds = stop.get("training_iteration"), stop.get("time_total_s")
    return (
        int(reports) if is_number(reports) and math.isfinite(reports) else None,
        float(seconds) if is_number(seconds) and math.isfinite(seconds) else None,
    )
