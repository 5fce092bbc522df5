"""Hyperparameter search over runs, and the names that training code and callbacks use from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.callback import Callback
from lockstep.checkpoint import Checkpoint
from lockstep.config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig
from lockstep.missing import raise_missing_name
from lockstep.result import Result
from lockstep.train.api import (
    get_checkpoint,
    get_context,
    get_trial_dir,
    get_trial_id,
    get_trial_name,
    get_trial_resources,
    report,
)
from lockstep.train.context import TrainContext as TuneContext
from lockstep.tune import logger, schedulers, search, utils
from lockstep.tune.analysis import ExperimentAnalysis
from lockstep.tune.compat import (
    CLIReporter,
    JupyterNotebookReporter,
    ProgressReporter,
    ResumeConfig,
)
from lockstep.tune.error import TuneError
from lockstep.tune.experiment import Experiment
from lockstep.tune.legacy import checkpoint_dir, is_session_enabled, run, run_experiments
from lockstep.tune.parameters import (
    PlacementGroupFactory,
    with_parameters,
    with_resources,
)
from lockstep.tune.registry import register_trainable
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
    "CLIReporter",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "Experiment",
    "ExperimentAnalysis",
    "FailureConfig",
    "JupyterNotebookReporter",
    "PlacementGroupFactory",
    "ProgressReporter",
    "Result",
    "ResultGrid",
    "ResumeConfig",
    "RunConfig",
    "Stopper",
    "SyncConfig",
    "Trainable",
    "TuneConfig",
    "TuneContext",
    "TuneError",
    "Tuner",
    "checkpoint_dir",
    "choice",
    "create_scheduler",
    "create_searcher",
    "get_checkpoint",
    "get_context",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "grid_search",
    "is_session_enabled",
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
    "register_trainable",
    "report",
    "run",
    "run_experiments",
    "sample_from",
    "schedulers",
    "search",
    "uniform",
    "utils",
    "with_parameters",
    "with_resources",
]

if not TYPE_CHECKING:  # a type checker would accept every name then

    def __getattr__(name: str) -> Any:
        raise_missing_name(__name__, name)
