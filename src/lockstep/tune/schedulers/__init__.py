"""Schedulers: they decide which trials continue, pause or stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.missing import raise_missing_name
from lockstep.tune.schedulers.async_hyperband import ASHAScheduler, AsyncHyperBandScheduler
from lockstep.tune.schedulers.hb_bohb import HyperBandForBOHB
from lockstep.tune.schedulers.hyperband import HyperBandScheduler
from lockstep.tune.schedulers.median_stopping_rule import MedianStoppingRule
from lockstep.tune.schedulers.pb2 import PB2
from lockstep.tune.schedulers.pbt import PopulationBasedTraining
from lockstep.tune.schedulers.pbt_replay import PopulationBasedTrainingReplay
from lockstep.tune.schedulers.trial_scheduler import FIFOScheduler, TrialScheduler

__all__ = [
    "PB2",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "TrialScheduler",
    "create_scheduler",
]

_BY_NAME: dict[str, type[TrialScheduler]] = {
    "fifo": FIFOScheduler,
    "asha": ASHAScheduler,
    "async_hyperband": AsyncHyperBandScheduler,
    "asynchyperband": AsyncHyperBandScheduler,
    "hyperband": HyperBandScheduler,
    "hb_bohb": HyperBandForBOHB,
    "median_stopping_rule": MedianStoppingRule,
    "medianstopping": MedianStoppingRule,
    "pbt": PopulationBasedTraining,
    "pb2": PB2,
    "pbt_replay": PopulationBasedTrainingReplay,
}


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:
    """Create the scheduler of this name with these arguments."""
    found = _BY_NAME.get(scheduler.lower()) if isinstance(scheduler, str) else None
    if found is None:
        raise ValueError(
            f"create_scheduler({scheduler!r}): unknown; expected one of {', '.join(_BY_NAME)}."
        )
    return found(**kwargs)


if not TYPE_CHECKING:  # a type checker would accept every name then

    def __getattr__(name: str) -> Any:
        raise_missing_name(__name__, name)
