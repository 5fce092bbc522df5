"""Functions on tables in other processes: the pool that sends tables, and the processes' side."""

from __future__ import annotations

__all__: list[str] = []
