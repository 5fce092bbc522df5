"""Trackers under the names of their older AIR modules."""

from __future__ import annotations

__all__ = []
