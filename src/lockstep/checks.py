"""Checks of numbers that users give. A bool is an int in Python, and never what was meant."""

from __future__ import annotations

import math
import operator
from typing import Any, TypeGuard

__all__ = ["check_int", "check_positive", "check_seed", "is_finite", "is_int", "is_number"]


def is_int(value: object) -> TypeGuard[int]:
    """Whether it is one of Python's integers, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is one of Python's integers or floats, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: object) -> TypeGuard[float]:
    """Whether it is a number as in ``is_number``, and neither infinite nor NaN."""
    return is_number(value) and math.isfinite(value)


def check_positive(owner: str, name: str, value: object) -> None:
    """Raise a ValueError unless the value is a finite number above 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{owner}({name}={value!r}): expected a finite number above 0.")


def check_int(given: str, value: Any, least: int = 0) -> int:
    """The value as Python's integer, which JSON can hold; numpy's integers are accepted.

    Args:
        given: how the user gave it, for the error.
        value: what was given.
        least: the smallest value allowed.

    Raises:
        ValueError: the value is not an integer, or too small.
    """
    number = _index(value)
    if number is None:
        raise ValueError(f"{given} is not a whole number; give {least} or more.")
    if number < least:
        raise ValueError(f"{given} is too small; give {least} or more.")
    return number


def check_seed(doing: str, seed: Any) -> int | None:
    """A seed as Python's integer, or None where the user gave none.

    Raises:
        TypeError: the seed is neither.
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
