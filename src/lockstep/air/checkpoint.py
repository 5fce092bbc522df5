"""``Checkpoint`` under its old spelling."""

from __future__ import annotations

from lockstep.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
