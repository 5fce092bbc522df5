"""The error of calls outside a training function, in the module where Ray has it."""

from __future__ import annotations

from lockstep.errors import SessionMisuseError

__all__ = ["SessionMisuseError"]
