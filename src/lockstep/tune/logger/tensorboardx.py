"""``TBXLoggerCallback`` under the name of its Tune module."""

from __future__ import annotations

from lockstep.trackers.tensorboard import TBXLoggerCallback

__all__ = ["TBXLoggerCallback"]
