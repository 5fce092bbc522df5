"""The same names in the module where Ray has them."""

from __future__ import annotations

from lockstep.result import Result

__all__ = ["Result"]
