"""The modules of Ray Train V2: other places of the same names."""

from __future__ import annotations

from lockstep.train.v2.api import (
    callback,
    config,
    context,
    data_parallel_trainer,
    exceptions,
    preemption,
    report_config,
    reported_checkpoint,
    result,
    train_fn_utils,
)

__all__ = [
    "callback",
    "config",
    "context",
    "data_parallel_trainer",
    "exceptions",
    "preemption",
    "report_config",
    "reported_checkpoint",
    "result",
    "train_fn_utils",
]
