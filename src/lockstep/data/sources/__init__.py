"""Where rows come from: files of each format, and tables in memory."""

from __future__ import annotations

__all__: list[str] = []
