"""One value for each rank, and sets of ranks: immutable, and cheap to change for thousands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from typing import Any, overload

__all__ = ["added", "nothing_for", "put", "set_of"]

SMALL = 256
"""Up to this many ranks, a tuple and a frozenset are faster."""
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


class _Grown(Sequence[Any]):
    """The first ``size`` items of a list that only grows, so an earlier value stays as it is.

    With a tuple, the failures of 10,000 ranks would copy 10,000 failures 10,000 times.
    """

    __slots__ = ("_items", "_size")

    def __init__(self, items: list[Any], size: int) -> None:
        self._items = items
        self._size = size

    def added(self, value: Any) -> _Grown:
        items = self._items
        if len(items) > self._size:  # another value was added to this one before
            items = items[: self._size]
        items.append(value)
        return _Grown(items, self._size + 1)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        # By way of a range: an index from the end counts from this value's own end.
        if isinstance(index, slice):
            return tuple(self)[index]
        return self._items[range(self._size)[index]]

    def __iter__(self) -> Iterator[Any]:
        return islice(self._items, self._size)

    def __len__(self) -> int:
        return self._size


def added(items: Sequence[Any], value: Any) -> Sequence[Any]:
    """A copy with one more value at its end."""
    if type(items) is _Grown:
        return items.added(value)
    if len(items) < SMALL:
        return (*items, value)
    return _Grown(list(items), len(items)).added(value)


class _RankSet(AbstractSet[int]):
    """The bits of one integer: a change copies a bit for each rank, not a hash table.

    With a frozenset, the ends of 10,000 ranks would copy 10,000 ranks 10,000 times.
    """

    __slots__ = ("_bits",)

    def __init__(self, bits: int) -> None:
        self._bits = bits

    @classmethod
    def _from_iterable(cls, ranks: Iterable[Any]) -> _RankSet:  # type: ignore[override]  # ranks only
        listed = tuple(ranks)
        if len(listed) == 1:
            return cls(1 << listed[0])
        # Byte by byte: to change an integer for each rank would copy it for each rank.
        marks = bytearray((max(listed, default=0) >> 3) + 1)
        for rank in listed:
            marks[rank >> 3] |= 1 << (rank & 7)
        return cls(int.from_bytes(marks, "little"))

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and bool(self._bits >> rank & 1)

    def __iter__(self) -> Iterator[int]:
        size = (self._bits.bit_length() + 7) // 8
        for place, byte in enumerate(self._bits.to_bytes(size, "little")):
            for bit in range(8) if byte else ():
                if byte >> bit & 1:
                    yield 8 * place + bit

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __or__(self, other: AbstractSet[Any]) -> _RankSet:
        return _RankSet(self._bits | _bits_of(other))

    def __and__(self, other: AbstractSet[Any]) -> _RankSet:
        return _RankSet(self._bits & _bits_of(other))

    def __sub__(self, other: AbstractSet[Any]) -> _RankSet:
        return _RankSet(self._bits & ~_bits_of(other))

    __ror__ = __or__
    __rand__ = __and__

    def __hash__(self) -> int:
        return self._hash()

    def __repr__(self) -> str:
        return f"{{{', '.join(map(str, self))}}}"


def _bits_of(ranks: AbstractSet[Any]) -> int:
    if isinstance(ranks, _RankSet):
        return ranks._bits
    return _RankSet._from_iterable(ranks)._bits


def set_of(ranks: Iterable[int], size: int) -> AbstractSet[int]:
    """These of ``size`` ranks."""
    return frozenset(ranks) if size <= SMALL else _RankSet._from_iterable(ranks)
