"""The exceptions of ``lockstep.errors`` under their old spellings."""

from __future__ import annotations

from lockstep.errors import (
    CheckpointError,
    EngineError,
    HangError,
    InsufficientResourcesError,
    LockstepError,
    MismatchedReportsError,
    PreemptedError,
    RemoteError,
    StopConditionError,
    StopTraining,
    StorageError,
    TrainingFailedError,
    TrainingInterrupted,
    TrainingPreempted,
    WorkerDiedError,
    WorkerGroupError,
)

__all__ = [
    "CheckpointError",
    "EngineError",
    "HangError",
    "InsufficientResourcesError",
    "LockstepError",
    "MismatchedReportsError",
    "PreemptedError",
    "RayActorError",
    "RemoteError",
    "StopConditionError",
    "StopTraining",
    "StorageError",
    "TrainingFailedError",
    "TrainingInterrupted",
    "TrainingPreempted",
    "WorkerDiedError",
    "WorkerGroupError",
]

RayActorError = WorkerDiedError
