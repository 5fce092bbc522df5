"""Pieces of rows cut into batches of one size and format, across the bounds of pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from lockstep.data.arrow.columns import one_array, take, to_numpy, writable
from lockstep.data.arrow.formats import to_format
from lockstep.data.arrow.unify import concatenated
from lockstep.data.plan.unit import Piece

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from lockstep.data.plan.position import LocalShuffle

__all__ = ["Batch", "cut_arrays", "cut_tables", "locally_shuffled", "skipped"]

Batch: TypeAlias = tuple[Any, int]
"""A batch and how many rows it has."""


def skipped(pieces: Iterator[Piece], rows: int) -> Iterator[Piece]:
    """The pieces without the first rows."""
    for piece in pieces:
        if rows >= piece.table.num_rows:
            rows -= piece.table.num_rows
            continue
        yield Piece(piece.table.slice(rows), piece.owned) if rows else piece
        rows = 0


def locally_shuffled(
    pieces: Iterator[Piece], shuffle: LocalShuffle, epoch: int, rank: int, window: int
) -> Iterator[Piece]:
    """The pieces with every ``shuffle.size`` rows permuted; ``window`` numbers the first."""
    for table, rows in cut_tables(pieces, shuffle.size, False, "pyarrow"):
        yield Piece(take(table, shuffle.order(epoch, rank, window, rows)), True)
        window += 1


def cut_tables(
    pieces: Iterator[Piece], size: int | None, drop_last: bool, batch_format: str
) -> Iterator[Batch]:
    """Batches as Arrow tables or data frames; with size None each piece is a batch."""
    batches = _cut(pieces, size, drop_last, _Table, _joined)
    for table, rows in batches:
        yield to_format(table, batch_format), rows
        del table  # free it before the next one is read


def cut_arrays(
    pieces: Iterator[Piece], size: int | None, drop_last: bool, write: bool
) -> Iterator[Batch]:
    """Batches as dicts of arrays; ``write`` makes the arrays writable."""
    return _cut(pieces, size, drop_last, lambda piece: _Columns(piece, write), _stacked)


def _cut(
    pieces: Iterator[Piece],
    size: int | None,
    drop_last: bool,
    open_piece: Callable[[Piece], _Table | _Columns],
    join: Callable[[list[Any]], Any],
) -> Iterator[Batch]:
    """Cut pieces into batches; a batch over several pieces is joined from their parts."""
    waiting: list[Any] = []
    have = 0
    for piece in pieces:
        opened = open_piece(piece)
        rows = opened.rows
        del piece
        if size is None:
            yield opened.part(0, rows), rows
            continue
        begin = 0
        # First complete the batch that the pieces before began.
        if have:
            begin = min(size - have, rows)
            waiting.append(opened.part(0, begin))
            have += begin
            if have < size:
                continue
            yield join(waiting), size
            waiting, have = [], 0
        while rows - begin >= size:
            yield opened.part(begin, begin + size), size
            begin += size
        if begin < rows:
            waiting, have = [opened.rest(begin)], rows - begin
        del opened  # free the piece before the next one is read
    if have and not drop_last:
        yield join(waiting), have


class _Table:
    """A piece's rows as tables."""

    def __init__(self, piece: Piece) -> None:
        self.table = piece.table
        self.rows = piece.table.num_rows

    def part(self, start: int, stop: int) -> pa.Table:
        return self.table.slice(start, stop - start)

    def rest(self, start: int) -> pa.Table:
        return self.table.slice(start)


class _Columns:
    """A piece's columns as arrays, each converted once; columns of lists, batch by batch."""

    def __init__(self, piece: Piece, write: bool) -> None:
        import pyarrow.types as types

        self.rows = piece.table.num_rows
        self.owned, self.write = piece.owned, write
        self.arrays: list[tuple[str, Any, bool]] = []
        for name, column in zip(piece.table.column_names, piece.table.columns, strict=True):
            kind = column.type
            # Lists of one length become a 2-D array. That is decided for each batch: a longer list
            # elsewhere in the piece must not change this batch.
            if types.is_list(kind) or types.is_large_list(kind):
                self.arrays.append((name, one_array(column), True))
                continue
            array = to_numpy(column)
            if write:
                array = writable(array, piece.owned)
            self.arrays.append((name, array, False))

    def part(self, start: int, stop: int) -> dict[str, np.ndarray[Any, Any]]:
        return {
            name: self._lists(values, start, stop) if lists else values[start:stop]
            for name, values, lists in self.arrays
        }

    def rest(self, start: int) -> dict[str, np.ndarray[Any, Any]]:
        # A copy, so that a few rows do not keep the complete piece in memory.
        return {name: array.copy() for name, array in self.part(start, self.rows).items()}

    def _lists(self, values: pa.Array, start: int, stop: int) -> np.ndarray[Any, Any]:
        array = to_numpy(values.slice(start, stop - start))
        return writable(array, self.owned) if self.write else array


def _joined(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else concatenated(tables).combine_chunks()


def _stacked(parts: list[dict[str, np.ndarray[Any, Any]]]) -> dict[str, np.ndarray[Any, Any]]:
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _end_to_end([_column(part, name) for part in parts]) for name in names}


def _column(part: dict[str, np.ndarray[Any, Any]], name: str) -> np.ndarray[Any, Any]:
    """A column; of nulls where these rows do not have it."""
    import numpy as np

    if name in part:
        return part[name]
    # Files of JSON, and parts of a union, may have different columns.
    return np.full(len(next(iter(part.values()))), None)


def _end_to_end(arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    import numpy as np

    arrays = _nulls_as_numbers(arrays)
    if len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    # Arrays of different shapes: numpy would try to stack them, so put each in by itself.
    merged = np.empty(sum(map(len, arrays)), dtype=object)
    place = 0
    for array in arrays:
        for value in array:
            merged[place] = value
            place += 1
    return merged


def _nulls_as_numbers(arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The arrays; those of nulls only, beside numbers or times, as Arrow shows such nulls."""
    import numpy as np

    kinds = {array.dtype.kind for array in arrays}
    if "O" not in kinds or not kinds & set("iufmM") or any(array.ndim > 1 for array in arrays):
        return arrays
    if any(value is not None for array in arrays if array.dtype == object for value in array):
        return arrays
    dtype = np.result_type(*(array.dtype for array in arrays if array.dtype != object))
    dtype = np.dtype(np.float64) if dtype.kind in "iu" else dtype
    return [
        np.full(len(array), "NaT" if dtype.kind in "mM" else np.nan, dtype)
        if array.dtype == object
        else array
        for array in arrays
    ]
