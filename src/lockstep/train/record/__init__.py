"""What a run keeps on storage: its rows, its checkpoints, and the trainer to restore it with."""

from __future__ import annotations

__all__: list[str] = []
