"""Ray's place of the names that say which columns directories add."""

from __future__ import annotations

from lockstep.data.datasource.partitioning import (
    Partitioning,
    PartitionStyle,
    PathPartitionFilter,
)

__all__ = ["PartitionStyle", "Partitioning", "PathPartitionFilter"]
