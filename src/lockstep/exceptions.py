"""The exceptions of ``lockstep.errors`` under their old spellings."""

from __future__ import annotations

from lockstep.errors import (
    CheckpointError,
    EngineError,
    InsufficientResourcesError,
    LockstepError,
    MismatchedReportsError,
    RemoteError,
    StopTraining,
    StorageError,
    TrainingFailedError,
    TrainingInterrupted,
    WorkerDiedError,
    WorkerGroupError,
)

__all__ = [
    "CheckpointError",
    "EngineError",
    "InsufficientResourcesError",
    "LockstepError",
    "MismatchedReportsError",
    "RayActorError",
    "RemoteError",
    "StopTraining",
    "StorageError",
    "TrainingFailedError",
    "TrainingInterrupted",
    "WorkerDiedError",
    "WorkerGroupError",
]

RayActorError = WorkerDiedError
