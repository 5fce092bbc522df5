"""Trackers and trainers under the names of their Tune modules."""

from __future__ import annotations

__all__ = []
