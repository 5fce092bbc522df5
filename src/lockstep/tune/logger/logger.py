"""``LoggerCallback`` under the name of its Tune module."""

from __future__ import annotations

from lockstep.callback import LoggerCallback

__all__ = ["LoggerCallback"]
