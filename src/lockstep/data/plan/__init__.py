"""Which rows are whose, in which order, and what is done to them. Pure: reads nothing by itself."""

from __future__ import annotations

__all__: list[str] = []
