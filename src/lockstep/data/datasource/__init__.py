"""Ray's place of the names that say which columns directories add, and how files are called."""

from __future__ import annotations

from lockstep.data.datasource.partitioning import (
    Partitioning,
    PartitionStyle,
    PathPartitionFilter,
)
from lockstep.data.methods.filenames import FilenameProvider

__all__ = ["FilenameProvider", "PartitionStyle", "Partitioning", "PathPartitionFilter"]
