"""What ``train.State`` writes: ``tree``, ``tensors`` and ``files``, and ``memory`` before that."""

from __future__ import annotations

__all__: list[str] = []
