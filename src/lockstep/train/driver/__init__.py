"""The driver's side of a run: the state machine, the controller around it, its callbacks."""

from __future__ import annotations

__all__: list[str] = []
