"""The names that training code and callbacks use from ``tune``."""

from __future__ import annotations

from lockstep.callback import Callback
from lockstep.train.api import get_checkpoint, get_context, report
from lockstep.tune import logger

__all__ = ["Callback", "get_checkpoint", "get_context", "logger", "report"]
