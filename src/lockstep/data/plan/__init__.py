"""Which rows belong to which rank, in which order, and the operations on them."""

from __future__ import annotations

__all__: list[str] = []
