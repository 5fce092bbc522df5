"""The worker's side of a run: the process around the training function."""

from __future__ import annotations

__all__: list[str] = []
