"""Checks of numbers that users give. A bool is an int in Python, but never meant as one here."""

from __future__ import annotations

import math
import operator
from typing import Any, TypeGuard

__all__ = [
    "check_field_int",
    "check_int",
    "check_positive",
    "check_seed",
    "is_finite",
    "is_int",
    "is_number",
]


def is_int(value: object) -> TypeGuard[int]:
    """Whether the value is a Python int, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a Python int or float, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: object) -> TypeGuard[float]:
    """Whether it is a number as in ``is_number``, and neither infinite nor NaN."""
    return is_number(value) and math.isfinite(value)


def check_positive(owner: str, name: str, value: object) -> None:
    """Raise a ValueError unless the value is a finite number above 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{owner}({name}={value!r}): expected a finite number above 0.")


def check_int(given: str, value: Any, least: int = 0) -> int:
    """The value as a Python int, which JSON can hold; numpy's integers are accepted.

    Args:
        given: the value as the user wrote it, for the error.
        value: the value.
        least: the smallest value allowed.

    Raises:
        ValueError: the value is not an integer, or too small.
    """
    number = _index(value)
    if number is None:
        raise ValueError(f"{given} is not an integer; give {least} or more.")
    if number < least:
        raise ValueError(f"{given} is too small; give {least} or more.")
    return number


def check_field_int(owner: str, name: str, value: object, least: int, why: str = "") -> None:
    """Check the argument ``owner(name=value)``; ``why`` is added to the message.

    Raises:
        TypeError: the value is not an integer.
        ValueError: the value is too small.
    """
    if not is_int(value):
        raise TypeError(f"{owner}({name}={value!r}): expected an integer.{why}")
    if value < least:
        raise ValueError(f"{owner}({name}={value}): must be {least} or more.{why}")


def check_seed(doing: str, seed: Any) -> int | None:
    """A seed as a Python int, or None if the user gave none.

    Raises:
        TypeError: the seed is neither an integer nor None.
    """
    number = _index(seed)
    if number is None and seed is not None:
        raise TypeError(f"{doing}(seed={seed!r}): give an integer or None.")
    return number


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
