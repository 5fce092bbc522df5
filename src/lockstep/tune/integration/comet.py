"""Comet under the name of its older Tune module."""

from __future__ import annotations

from lockstep.trackers.comet import CometLoggerCallback
from lockstep.train.tracking.comet import setup_comet

__all__ = ["CometLoggerCallback", "setup_comet"]
