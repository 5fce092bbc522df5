"""``log_once`` under Ray's path."""

from __future__ import annotations

__all__ = ["log_once"]

_seen: set[str] = set()


def log_once(key: str) -> bool:
    """Whether this is the first call with that key in this process."""
    first = key not in _seen
    _seen.add(key)
    return first
