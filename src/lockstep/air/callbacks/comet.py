"""Comet under the name of its older AIR module."""

from __future__ import annotations

from lockstep.trackers.comet import CometLoggerCallback

__all__ = ["CometLoggerCallback"]
