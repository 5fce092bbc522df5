"""The modules of Ray Train V2: other places of the same names."""

from __future__ import annotations

from lockstep.train.v2 import api, jax

__all__ = ["api", "jax"]
