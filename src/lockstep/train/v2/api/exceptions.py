"""The same names in the module where Ray has them."""

from __future__ import annotations

from lockstep.errors import (
    ControllerError,
    NCCLHangError,
    PreemptionError,
    TrainingFailedError,
    WorkerGroupError,
)

__all__ = [
    "ControllerError",
    "NCCLHangError",
    "PreemptionError",
    "TrainingFailedError",
    "WorkerGroupError",
]
