"""One value for each rank, immutable, and cheap to change for thousands of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, overload

__all__ = ["nothing_for", "put"]

SMALL = 256
"""Up to this many ranks, a tuple is faster."""
_BITS = 7
_CHUNK = 1 << _BITS


class _ByRank(Sequence[Any]):
    """Chunks of values: a change copies one chunk and the list of chunks, not every value.

    With a tuple, a report of 10,000 ranks would copy 10,000 values 10,000 times.
    """

    __slots__ = ("_chunks", "_size")

    def __init__(self, chunks: tuple[tuple[Any, ...], ...], size: int) -> None:
        self._chunks = chunks
        self._size = size

    def put(self, index: int, value: Any) -> _ByRank:
        place, inner = index >> _BITS, index & (_CHUNK - 1)
        chunk = self._chunks[place]
        changed = (*chunk[:inner], value, *chunk[inner + 1 :])
        chunks = (*self._chunks[:place], changed, *self._chunks[place + 1 :])
        return _ByRank(chunks, self._size)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        return self._chunks[index >> _BITS][index & (_CHUNK - 1)]

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._chunks)

    def __len__(self) -> int:
        return self._size


def nothing_for(size: int) -> Sequence[Any]:
    """None for each of ``size`` ranks."""
    if size <= SMALL:
        return (None,) * size
    sizes = [min(_CHUNK, size - start) for start in range(0, size, _CHUNK)]
    return _ByRank(tuple((None,) * one for one in sizes), size)


def put(items: Sequence[Any], index: int, value: Any) -> Sequence[Any]:
    """A copy with another value at ``index``."""
    # At every report; isinstance() of an abstract class is slow.
    if type(items) is _ByRank:
        return items.put(index, value)
    return (*items[:index], value, *items[index + 1 :])
