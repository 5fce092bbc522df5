"""A trial's result as text."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

__all__ = ["pretty_print"]


def pretty_print(result: Mapping[str, Any], exclude: Collection[str] | None = None) -> str:
    """A result as text, a line a value, without its config and values that are None."""
    left_out = {"config", "hist_stats", *(exclude or ())}
    names = sorted((name for name in result if name not in left_out), key=str)
    return "\n".join(_lines({name: result[name] for name in names})) + "\n"


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif value is not None:
            yield f"{indent}{name}: {json.dumps(value, default=_plain)}"


def _plain(value: Any) -> Any:
    """A NumPy number or array as Python's, another object as text."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "dtype") else str(value)
