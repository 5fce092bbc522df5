"""The same names in the module where Ray has them."""

from __future__ import annotations

from lockstep.config import CheckpointConsistencyMode, CheckpointUploadMode

__all__ = ["CheckpointConsistencyMode", "CheckpointUploadMode"]
