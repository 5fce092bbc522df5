"""TuneConfig: metric, searcher, scheduler and limits of a search."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.checks import is_int, is_number
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.search import Searcher
from lockstep.tune.search.searcher import check_objective

if TYPE_CHECKING:
    from lockstep.tune.experiment.trial import Trial

__all__ = ["TuneConfig"]


@dataclass
class TuneConfig:
    """Metric, searcher, scheduler and limits of a search.

    Args:
        metric: the reported metric to optimise; ``"a/b"`` reaches into nested dicts. A list if the
            searcher supports several objectives.
        mode: ``"min"`` or ``"max"``, one for each metric. What compares trials needs it.
        search_alg: proposes configs; by default random values and grids.
        scheduler: stops trials early; by default each trial runs to its end.
        num_samples: the number of trials, or of passes through the grid. -1: as many as there is
            time for, with ``time_budget_s`` or a ``Stopper``.
        max_concurrent_trials: at most this many at a time; by default as many as fit.
        time_budget_s: after this many seconds (or a ``timedelta``) no trial starts, and all trials
            stop at their next report or, if none comes, a moment later.
        reuse_actors: True: the trials of a ``Trainable`` class follow each other in one process,
            and each object takes the next config by ``reset_config``; where that returns False, a
            new object is made. By default, and for functions always, each trial has a process of
            its own, forked in milliseconds, so nothing can leak from one trial into another.
        trial_name_creator: ``f(trial) -> str``, the name of a trial.
        trial_dirname_creator: ``f(trial) -> str``, the name of its directory.
        chdir_to_trial_dir: the old spelling of ``RunConfig(working_dir="run")``.
    """

    metric: str | Sequence[str] | None = None
    mode: Any = None
    search_alg: Searcher | None = None
    scheduler: TrialScheduler | None = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: float | datetime.timedelta | None = None
    reuse_actors: bool | None = None
    trial_name_creator: Callable[[Trial], str] | None = None
    trial_dirname_creator: Callable[[Trial], str] | None = None
    chdir_to_trial_dir: bool | None = None

    def __post_init__(self) -> None:
        check_objective("TuneConfig", self.metric, self.mode)
        for name, kind in (("search_alg", Searcher), ("scheduler", TrialScheduler)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"TuneConfig({name}={value!r}): expected a {kind.__name__} object.")
        if not is_int(self.num_samples):
            raise TypeError(f"TuneConfig(num_samples={self.num_samples!r}): expected an integer.")
        if self.num_samples < 1 and self.num_samples != -1:
            raise ValueError(
                f"TuneConfig(num_samples={self.num_samples}): expected 1 or more, or -1 for as "
                "many as there is time for."
            )
        limit = self.max_concurrent_trials
        if limit is not None and (not is_int(limit) or limit < 0):
            raise ValueError(
                f"TuneConfig(max_concurrent_trials={limit!r}): expected an integer, or None for "
                "as many as fit."
            )
        if isinstance(self.time_budget_s, datetime.timedelta):
            self.time_budget_s = self.time_budget_s.total_seconds()
        budget = self.time_budget_s
        if budget is not None and (not is_number(budget) or not 0 < budget < math.inf):
            raise ValueError(
                f"TuneConfig(time_budget_s={budget!r}): expected seconds, finite and above 0."
            )
        if self.reuse_actors not in (None, True, False):
            raise TypeError(f"TuneConfig(reuse_actors={self.reuse_actors!r}): give True or False.")
        for name in ("trial_name_creator", "trial_dirname_creator"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"TuneConfig({name}={value!r}): expected a function of a trial.")
