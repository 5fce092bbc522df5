"""A trial's result as text."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

__all__ = ["pretty_print"]


def pretty_print(result: Mapping[str, Any], exclude: Collection[str] | None = None) -> str:
    """A result as text, a line a value, without its config and values that are None."""
    left_out = {"config", "hist_stats", *(exclude or ())}
    return "\n".join(_lines({k: result[k] for k in sorted(result) if k not in left_out})) + "\n"


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif value is not None:
            yield f"{indent}{name}: {json.dumps(value, default=str)}"
