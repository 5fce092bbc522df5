"""``PlacementGroupFactory`` under the name of its Tune module."""

from __future__ import annotations

__all__ = []
