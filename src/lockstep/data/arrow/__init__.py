"""Arrow columns: to and from numpy, pandas and Python rows; filter expressions."""

from __future__ import annotations

__all__: list[str] = []
