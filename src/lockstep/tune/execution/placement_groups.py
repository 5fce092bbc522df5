"""``PlacementGroupFactory`` under the name of its Tune module."""

from __future__ import annotations

from lockstep.tune.parameters import PlacementGroupFactory

__all__ = ["PlacementGroupFactory"]
