"""The same names in the module where Ray has them."""

from __future__ import annotations

from lockstep.train.validation import ValidationConfig, ValidationFn, ValidationTaskConfig

__all__ = ["ValidationConfig", "ValidationFn", "ValidationTaskConfig"]
