"""What the libraries of boosted trees share: their trainer, their checkpoints and reports."""

from __future__ import annotations

__all__: list[str] = []
