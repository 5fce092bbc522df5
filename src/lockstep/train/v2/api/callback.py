"""The same names in the module where Ray has them."""

from __future__ import annotations

from lockstep.callback import UserCallback

__all__ = ["UserCallback"]
