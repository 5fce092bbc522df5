"""``ObjectRef`` under Ray's path."""

from __future__ import annotations

from lockstep.core import ObjectRef

__all__ = ["ObjectRef"]
