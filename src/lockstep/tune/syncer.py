"""``SyncConfig`` under the name of its Tune module."""

from __future__ import annotations

from lockstep.config import SyncConfig

__all__ = ["SyncConfig"]
