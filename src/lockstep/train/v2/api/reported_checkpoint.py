"""The same names in the module where Ray has them."""

from __future__ import annotations

from lockstep.train.api import ReportedCheckpoint, ReportedCheckpointStatus

__all__ = ["ReportedCheckpoint", "ReportedCheckpointStatus"]
