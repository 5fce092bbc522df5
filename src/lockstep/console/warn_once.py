"""Warnings that are shown once a kind."""

from __future__ import annotations

from lockstep.console.display import Display

__all__ = ["WarnOnce"]


class WarnOnce:
    """Shows each kind of warning once on a display. May be called from any thread."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._warned: set[str] = set()

    def __call__(self, kind: str, text: str) -> None:
        """Show the warning, unless there was one of this kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            self._display.message(text, "warning")

    def __contains__(self, kind: str) -> bool:
        return kind in self._warned
