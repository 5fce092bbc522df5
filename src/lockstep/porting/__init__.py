"""Rewrites files that use Ray into files that use lockstep."""

from __future__ import annotations

from lockstep.porting.names import Remark
from lockstep.porting.port import Ported, port_source

__all__ = ["Ported", "Remark", "port_source"]
