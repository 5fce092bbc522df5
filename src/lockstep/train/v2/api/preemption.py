"""The same names in the module where Ray has them."""

from __future__ import annotations

from lockstep.train.context import PreemptionInfo

__all__ = ["PreemptionInfo"]
