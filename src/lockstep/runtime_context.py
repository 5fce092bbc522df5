"""``get_runtime_context`` under Ray's path."""

from __future__ import annotations

from lockstep.core import RuntimeContext, get_runtime_context

__all__ = ["RuntimeContext", "get_runtime_context"]
