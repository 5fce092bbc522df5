"""What is decided before a run starts."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.callback import RunContext
from lockstep.checkpoint import Checkpoint
from lockstep.config import RunConfig
from lockstep.engine import Engine, GroupSpec
from lockstep.train.driver.scaling import ScalingPolicy
from lockstep.train.driver.validations import ValidationPlan
from lockstep.train.streams import Streams

__all__ = ["RunPlan"]


@dataclass(frozen=True)
class RunPlan:
    """One run, ready to be driven: a trainer makes it, or a trial; a controller performs it."""

    engine: Engine
    group: GroupSpec
    """The first attempt's workers, with the payload that each of them gets."""
    scaling: ScalingPolicy
    run_config: RunConfig
    run_context: RunContext
    """What ``UserCallback`` hooks get."""
    start_from: Checkpoint | None
    """What the first attempt gets where the run has no checkpoint of its own."""
    all_announcements: bool
    """Every worker gets the announcements of all ranks. Else: those of rank 0 and its machine."""
    streams: Streams
    """The datasets that are divided again for each attempt."""
    validation: ValidationPlan | None = None
