"""What an experiment shows its user while it runs."""

from __future__ import annotations

__all__: list[str] = []
