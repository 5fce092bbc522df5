"""Callbacks for other libraries, under the names of their Tune modules."""

from __future__ import annotations

__all__ = []
