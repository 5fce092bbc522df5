"""Running an experiment's trials: which one starts next, when it stops, how its run ends."""

from __future__ import annotations

__all__: list[str] = []
