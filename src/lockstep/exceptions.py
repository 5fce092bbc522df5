"""The exceptions of ``lockstep.errors`` under their old spellings."""

from __future__ import annotations

from lockstep import errors
from lockstep.errors import *  # noqa: F403
from lockstep.errors import WorkerDiedError as RayActorError

__all__ = ["RayActorError"]
__all__ += errors.__all__
