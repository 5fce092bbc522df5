"""The exceptions of ``lockstep.errors`` under their old spellings."""

from __future__ import annotations

from lockstep import errors
from lockstep.errors import *  # noqa: F403  # all of them
from lockstep.errors import LockstepError as RayError
from lockstep.errors import TrainingFailedError as RayTaskError
from lockstep.errors import WorkerDiedError as RayActorError
from lockstep.errors import WorkerDiedError as WorkerCrashedError

UserCodeException = Exception
"""What an ``except`` around a dataset's functions has to name: a user's own exception is raised."""

__all__ = [
    "RayActorError",
    "RayError",
    "RayTaskError",
    "UserCodeException",
    "WorkerCrashedError",
]
__all__ += errors.__all__
