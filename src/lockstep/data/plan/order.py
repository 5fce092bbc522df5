"""The order of an epoch: one sequence of all rows, cut into windows that are read as a whole.

An unshuffled dataset's windows are its units, one after the other. A shuffled one's are groups of
its units, in an order that changes with the epoch, and the rows of each are permuted. Everything
follows from the seed, the epoch and the rows' positions, so any rank can find any row by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from lockstep.data.arrow.columns import Concatenated, take
from lockstep.data.plan.hashing import key_of, permutation
from lockstep.data.plan.unit import Piece, Reader, Unit

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = [
    "Group",
    "Intervals",
    "Shuffle",
    "Window",
    "read_windows",
    "reseeded",
    "total_rows",
    "windows_of",
]

Intervals: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""Pairs (start, stop) of positions in the sequence, ascending, one row each."""

WINDOW_BYTES = 16 << 20
WINDOW_UNITS = 2
"""A window of its own choice has at least so many bytes and units, …"""
WINDOW_MOST_BYTES = 256 << 20
"""… unless that is more than so many bytes."""
STREAMED_BYTES = 128 << 20
"""A block of more bytes is read in parts, where it need not be permuted."""
SECTION_ROWS = 1 << 20
"""How many rows of something in memory are permuted at once."""


@dataclass(frozen=True)
class Shuffle:
    """How a group is shuffled.

    Attributes:
        seed: of every epoch's order.
        window: how many rows are permuted together, 0 for all of them, None to choose: all where
            the data is in memory, otherwise some row groups.
        rows: False where only the blocks change places, and the rows inside stay in order.
        drawn: nobody chose the seed, so it may be replaced.
    """

    seed: int
    window: int | None = None
    rows: bool = True
    drawn: bool = False


@dataclass(frozen=True, eq=False)
class Group:
    """Units that are shuffled together, or not at all."""

    units: Sequence[Unit]
    shuffle: Shuffle | None = None


@dataclass(frozen=True, eq=False)
class Window:
    """Units that are read together; with a ``key`` their rows are permuted by it.

    ``full``: it is everything there is, so no more of it may be held than is wanted.
    """

    units: Sequence[Unit]
    key: int | None = None
    full: bool = False

    @property
    def rows(self) -> int:
        """How many rows there are; they must have been counted."""
        return sum(unit.rows or 0 for unit in self.units)


def windows_of(groups: Sequence[Group], epoch: int) -> Iterator[Window]:
    """An epoch's windows, in order."""
    for number, group in enumerate(groups):
        shuffle = group.shuffle
        if shuffle is None or not group.units:
            yield from (Window((unit,)) for unit in group.units)
            continue
        key = key_of(shuffle.seed, number, epoch)
        if not shuffle.rows:
            order = permutation(key, len(group.units))
            yield from (Window((group.units[place],)) for place in order.tolist())
        elif _is_full(group, shuffle):
            yield Window(group.units, key, full=True)
        else:
            yield from _some_units_each(group.units, shuffle.window, key)


def _is_full(group: Group, shuffle: Shuffle) -> bool:
    if shuffle.window is None:
        return all(unit.source.in_memory for unit in group.units)
    return shuffle.window == 0


def _some_units_each(units: Sequence[Unit], rows: int | None, key: int) -> Iterator[Window]:
    window: list[Unit] = []
    filled = 0
    for place in permutation(key, len(units)).tolist():
        unit = units[place]
        window.append(unit)
        # By what goes in, not by what comes out: windows do not depend on what was counted.
        filled += unit.size if rows is None else unit.raw_rows or 0
        enough = len(window) >= WINDOW_UNITS or filled >= WINDOW_MOST_BYTES
        if filled >= rows if rows else filled >= WINDOW_BYTES and enough:
            yield Window(tuple(window), key_of(key, place))
            window, filled = [], 0
    if window:
        yield Window(tuple(window), key_of(key, place))


def read_windows(
    windows: Iterator[Window] | Sequence[Window], intervals: Intervals | None, reader: Reader
) -> Iterator[Piece]:
    """The rows of some intervals of the sequence, in order; None is all of them.

    Where all are wanted nothing needs to be counted.
    """
    import numpy as np

    position = 0
    for window in windows:
        if intervals is None:
            yield from _read(window, None, reader)
            continue
        start, position = position, position + window.rows
        first = int(np.searchsorted(intervals[:, 1], start, side="right"))
        last = int(np.searchsorted(intervals[:, 0], position, side="left"))
        if first >= len(intervals):
            return
        if first < last and start < position:
            own = np.clip(intervals[first:last], start, position) - start
            own = own[own[:, 0] < own[:, 1]]
            if len(own):
                whole = len(own) == 1 and own[0, 1] - own[0, 0] == position - start
                yield from _read(window, None if whole else own, reader)


def _read(window: Window, own: Intervals | None, reader: Reader) -> Iterator[Piece]:
    """A window's rows; ``own`` are intervals inside it, None for all of it."""
    units = window.units
    if window.key is None and units[0].size > STREAMED_BYTES and units[0].keeps_rows:
        yield from _streamed(units[0], own, reader)
        return
    if window.key is None:
        piece = reader.rows(units[0], None if own is None else _slice_or_rows(own))
        if piece.table.num_rows:
            yield piece
        return
    commute = all(unit.keeps_rows for unit in units) and _alike(units)
    known = all(unit.rows is not None for unit in units)
    if commute and known and all(unit.source.in_memory for unit in units):
        chosen = permutation(window.key, window.rows, None if own is None else _rows(own))
        for begin in range(0, len(chosen), SECTION_ROWS):
            section = chosen[begin : begin + SECTION_ROWS]
            yield from _shuffled(_some(units, section, reader, commute), units, reader, commute)
        return
    if own is not None and window.full:
        chosen = permutation(window.key, window.rows, _rows(own))
        yield from _shuffled(_some(units, chosen, reader, commute), units, reader, commute)
        return
    tables = [_table(unit, None, reader, commute) for unit in units]
    rows = sum(table.num_rows for table in tables)
    order = permutation(window.key, rows, None if own is None else _rows(own))
    tables = [table for table in tables if table.num_rows]
    if tables:
        # All of a column at once: coming back to it costs more than the memory.
        table = Concatenated(tables, reader.memory).take(order)
        yield from _shuffled(table, units, reader, commute)


def _streamed(unit: Unit, own: Intervals | None, reader: Reader) -> Iterator[Piece]:
    """A large unit's rows, a part after the other."""
    import numpy as np

    rows = unit.raw_rows
    if own is None:
        own = np.array([[0, np.iinfo(np.int64).max if rows is None else rows]])
    for table, position in reader.stream(unit):
        mine = np.clip(own - position, 0, table.num_rows)
        mine = mine[mine[:, 0] < mine[:, 1]]
        if len(mine):
            chosen = _slice_or_rows(mine)
            part = (
                table.slice(chosen.start, chosen.stop - chosen.start)
                if isinstance(chosen, slice)
                else take(table, chosen)
            )
            piece = reader.finish(Piece(part, not unit.source.in_memory), unit)
            if piece.table.num_rows:
                yield piece
        if position + table.num_rows >= own[-1, 1]:
            return


def _alike(units: Sequence[Unit]) -> bool:
    first = units[0]
    return all(
        unit.operations is first.operations or unit.operations == first.operations for unit in units
    )


def _table(
    unit: Unit, chosen: np.ndarray[Any, Any] | None, reader: Reader, commute: bool
) -> pa.Table:
    """A unit's rows, before its operations where these can wait until after the permutation."""
    if not commute:
        return reader.rows(unit, chosen).table
    raw = reader.raw(unit)
    return raw if chosen is None else take(raw, chosen)


def _some(
    units: Sequence[Unit], chosen: np.ndarray[Any, Any], reader: Reader, commute: bool
) -> pa.Table | None:
    """Rows of several units, numbered through, in the order asked for; one unit at a time."""
    import numpy as np

    ends = np.cumsum([unit.rows for unit in units])
    order = np.argsort(chosen, kind="stable")
    ascending = chosen[order]
    bounds = np.searchsorted(ascending, ends)
    tables = []
    begin = 0
    for unit, end, bound in zip(units, ends.tolist(), bounds.tolist(), strict=True):
        if begin < bound:
            mine = ascending[begin:bound] - (end - (unit.rows or 0))
            tables.append(_table(unit, mine, reader, commute))
        begin = bound
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return Concatenated(tables).take(places) if tables else None


def _shuffled(
    table: pa.Table | None, units: Sequence[Unit], reader: Reader, commute: bool
) -> Iterator[Piece]:
    if table is None:
        return
    piece = Piece(table, True)
    if commute:
        piece = reader.finish(piece, units[0])
    if piece.table.num_rows:
        yield piece


def _slice_or_rows(own: Intervals) -> Any:
    if len(own) == 1:
        return slice(int(own[0, 0]), int(own[0, 1]))
    return _rows(own)


def _rows(own: Intervals) -> Any:
    """Intervals as row numbers."""
    import numpy as np

    if len(own) == 1:
        return np.arange(own[0, 0], own[0, 1])
    lengths = own[:, 1] - own[:, 0]
    starts = np.repeat(own[:, 0] - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
    return starts + np.arange(int(lengths.sum()))


def reseeded(groups: Sequence[Group], seeds: Sequence[int | None]) -> list[Group]:
    """The groups with other seeds; None leaves a group's own."""
    return [
        group
        if seed is None or group.shuffle is None
        else replace(group, shuffle=replace(group.shuffle, seed=seed))
        for group, seed in zip(groups, seeds, strict=True)
    ]


def total_rows(groups: Sequence[Group]) -> int:
    """How many rows there are; they must have been counted."""
    return sum(unit.rows or 0 for group in groups for unit in group.units)
