"""Random numbers and orders that are the same on every machine, from integer hashes.

No library's random generator is used: its sequences may change with its version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["draw_seed", "hash_range", "key_of", "permutation"]

_MASK = (1 << 64) - 1
# The constants of splitmix64: public, small, and good enough to order rows with.
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_SORTED = 1 << 16
"""Up to this size an order is made by sorting hashes, beyond it by a Feistel network."""
_ROUNDS = 4
_AT_ONCE = 1 << 16
"""How many numbers are permuted at once: few enough to stay in the processor's cache."""


def draw_seed() -> int:
    """A random seed."""
    import secrets

    return secrets.randbits(63)


def key_of(*numbers: int) -> int:
    """A 64-bit key from several integers; a change in any of them gives another key."""
    key = 0
    for number in numbers:
        key = _mix((key + _STEP + number) & _MASK)
    return key


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def hash_range(key: int, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The hash of each position in a range: 64 bits, no two the same (splitmix64)."""
    import numpy as np

    values = np.arange(start, stop, dtype=np.uint64)
    values *= np.uint64(_STEP)
    values += np.uint64(key)
    values ^= values >> np.uint64(30)
    values *= np.uint64(_FIRST)
    values ^= values >> np.uint64(27)
    values *= np.uint64(_SECOND)
    values ^= values >> np.uint64(31)
    return values


def permutation(
    key: int, size: int, places: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A random order of the numbers below ``size``: all of it, or its entries at ``places``."""
    import numpy as np

    if size > _SORTED:
        return _scattered(key, size, places)
    # The hash loses its low bits to the number. Two rows whose other bits are equal keep their
    # order, which is rare.
    # Sort the hash's high bits and the number as one integer: much faster than an argsort.
    low = np.uint64((1 << max(size - 1, 0).bit_length()) - 1)
    values = hash_range(key, 0, size)
    values &= ~low
    values |= np.arange(size, dtype=np.uint64)
    values.sort()
    values &= low
    order = values.view(np.int64)
    return order if places is None else order[places]


def _scattered(
    key: int, size: int, places: np.ndarray[Any, Any] | None
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The entries at some places of a permutation by a Feistel network.

    No other entries need to be computed. The network permutes a power of two; a value outside
    ``size`` is sent through again until it is inside (cycle walking).
    """
    import numpy as np

    bits = (size - 1).bit_length()
    if bits > 32:
        raise ValueError(
            f"{size} rows are too many to permute at once; give random_shuffle a smaller window."
        )
    low = bits - bits // 2
    masks = np.uint32((1 << low) - 1), np.uint32((1 << (bits - low)) - 1)
    keys = [np.uint32(key_of(key, number) >> 32) for number in range(_ROUNDS)]

    def sent(values: np.ndarray[Any, np.dtype[np.uint32]]) -> np.ndarray[Any, np.dtype[np.uint32]]:
        left, right = values >> np.uint32(low), values & masks[0]
        # The halves may differ in width by a bit. So each half has its mask, and they never swap.
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            right ^= _hash32(left, even) & masks[0]
            left ^= _hash32(right, odd) & masks[1]
        left <<= np.uint32(low)
        left |= right
        return left

    count = size if places is None else len(places)
    order = np.empty(count, np.int64)
    for begin in range(0, count, _AT_ONCE):
        end = min(begin + _AT_ONCE, count)
        if places is None:
            values = sent(np.arange(begin, end, dtype=np.uint32))
        else:
            values = sent(places[begin:end].astype(np.uint32))
        outside = np.flatnonzero(values >= size)
        while len(outside):
            again = sent(values[outside])
            values[outside] = again
            outside = outside[again >= size]
        order[begin:end] = values
    return order


def _hash32(
    values: np.ndarray[Any, np.dtype[np.uint32]], key: np.uint32
) -> np.ndarray[Any, np.dtype[np.uint32]]:
    import numpy as np

    # A new array: the caller's half is still needed. The steps below are in place.
    values = values + key
    values *= np.uint32(0x9E3779B1)
    values ^= values >> np.uint32(15)
    values *= np.uint32(0x85EBCA77)
    values ^= values >> np.uint32(13)
    return values
