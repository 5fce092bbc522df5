"""Whole numbers that users give: Python's and numpy's, kept as Python's, which JSON can hold."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["check_int", "check_seed"]


def check_int(given: str, value: Any, least: int = 0) -> int:
    """A whole number.

    Args:
        given: how the user gave it, for the error.
        value: what was given.
        least: what it must not be below.

    Raises:
        ValueError: it is no whole number, or too small.
    """
    number = _index(value)
    if number is None:
        raise ValueError(f"{given} is not a whole number; give {least} or more.")
    if number < least:
        raise ValueError(f"{given} is too small; give {least} or more.")
    return number


def check_seed(doing: str, seed: Any) -> int | None:
    """A seed, or None where the user left that open.

    Raises:
        TypeError: it is neither.
    """
    number = _index(seed)
    if number is None and seed is not None:
        raise TypeError(f"{doing}(seed={seed!r}): give a whole number or None.")
    return number


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
