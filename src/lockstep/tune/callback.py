"""``Callback`` under the name of its Tune module."""

from __future__ import annotations

from lockstep.callback import Callback

__all__ = ["Callback"]
