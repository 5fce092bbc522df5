"""Iterating: rows become batches, in the background, from where an epoch was left."""

from __future__ import annotations

__all__: list[str] = []
