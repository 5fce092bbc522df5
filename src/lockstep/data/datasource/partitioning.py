"""Another place of ``Partitioning``, ``PartitionStyle`` and ``PathPartitionFilter``."""

from __future__ import annotations

from lockstep.data.sources.partitions import Partitioning, PartitionStyle, PathPartitionFilter

__all__ = ["PartitionStyle", "Partitioning", "PathPartitionFilter"]
