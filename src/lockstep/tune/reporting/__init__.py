"""What an experiment shows while it runs: the table of trials, messages, output."""

from __future__ import annotations

__all__: list[str] = []
