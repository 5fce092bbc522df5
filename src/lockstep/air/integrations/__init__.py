"""Trackers and frameworks under the names of their AIR modules."""

from __future__ import annotations

__all__ = []
