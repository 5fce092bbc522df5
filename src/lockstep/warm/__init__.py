"""Scripts that start at once: ``lockstep run``, and the server that keeps modules imported."""

from __future__ import annotations

__all__: list[str] = []
