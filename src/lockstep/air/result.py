"""``Result`` under its old spelling."""

from __future__ import annotations

from lockstep.result import Result

__all__ = ["Result"]
