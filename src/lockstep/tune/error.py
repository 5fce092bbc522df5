"""``TuneError``: any error of this library."""

from __future__ import annotations

from lockstep.errors import LockstepError as TuneError

__all__ = ["TuneError"]
