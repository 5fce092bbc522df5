"""An experiment on storage: its journal, its trials, and how it is restored."""

from __future__ import annotations

from lockstep.tune.experiment.spec import Experiment
from lockstep.tune.experiment.trial import Trial

__all__ = ["Experiment", "Trial"]
