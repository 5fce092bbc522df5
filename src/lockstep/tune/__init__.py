"""Hyperparameter search over runs, and the names that training code and callbacks use from it."""

from __future__ import annotations

from lockstep.callback import Callback
from lockstep.checkpoint import Checkpoint
from lockstep.config import CheckpointConfig, FailureConfig, RunConfig
from lockstep.train.api import get_checkpoint, get_context, report
from lockstep.tune import logger, schedulers, search
from lockstep.tune.legacy import ExperimentAnalysis, run
from lockstep.tune.parameters import (
    PlacementGroupFactory,
    with_parameters,
    with_resources,
)
from lockstep.tune.result_grid import ResultGrid
from lockstep.tune.schedulers import create_scheduler
from lockstep.tune.search import create_searcher
from lockstep.tune.search.sample import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from lockstep.tune.stopper import Stopper
from lockstep.tune.trainable import Trainable
from lockstep.tune.tune_config import TuneConfig
from lockstep.tune.tuner import Tuner

__all__ = [
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "ExperimentAnalysis",
    "FailureConfig",
    "PlacementGroupFactory",
    "ResultGrid",
    "RunConfig",
    "Stopper",
    "Trainable",
    "TuneConfig",
    "Tuner",
    "choice",
    "create_scheduler",
    "create_searcher",
    "get_checkpoint",
    "get_context",
    "grid_search",
    "logger",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "report",
    "run",
    "sample_from",
    "schedulers",
    "search",
    "uniform",
    "with_parameters",
    "with_resources",
]
