"""The order of an epoch: one sequence of all rows, divided into windows.

A window is read at once. The windows of an unshuffled dataset are its units, one after the other.
In a shuffled dataset a window is several units, chosen in an order that changes with the epoch, and
the rows of each window are permuted. The order depends on the seed, the epoch and the rows'
positions only, so any rank can find any row by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from lockstep.data.arrow.columns import Concatenated, take
from lockstep.data.plan.hashing import key_of, permutation
from lockstep.data.plan.lookahead import in_order
from lockstep.data.plan.meter import Meter
from lockstep.data.plan.unit import Pending, Piece, Reader, Unit

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = [
    "EpochShuffle",
    "Group",
    "Intervals",
    "Window",
    "new_meter",
    "read_windows",
    "reseeded",
    "total_rows",
    "windows_of",
]

Intervals: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""An array of pairs (start, stop) of positions in the sequence, ascending."""

WINDOW_BYTES = 16 << 20
WINDOW_UNITS = 2
"""A window whose size the user left open has at least this many bytes and units, …"""
WINDOW_MOST_BYTES = 256 << 20
"""… but takes no further unit once it has this many bytes."""
STREAMED_BYTES = 128 << 20
"""A unit of more bytes is read in parts, unless its rows must be permuted."""
SECTION_ROWS = 1 << 20
"""How many rows of a table in memory are permuted at once."""


@dataclass(frozen=True)
class EpochShuffle:
    """How the rows of a group are shuffled, differently in each epoch.

    Attributes:
        seed: of every epoch's order.
        window: how many rows are permuted together. 0: all rows. None: all rows of data in memory,
            otherwise a few units.
        rows: False where only the units are reordered and the rows inside keep their order.
        drawn: the user gave no seed, so another one may replace it.
    """

    seed: int
    window: int | None = None
    rows: bool = True
    drawn: bool = False


@dataclass(frozen=True, eq=False)
class Group:
    """A part of a dataset: units that are shuffled together, or not at all.

    A dataset is a list of groups, one after the other: several where a union has shuffled parts.
    """

    units: Sequence[Unit]
    shuffle: EpochShuffle | None = None


@dataclass(frozen=True, eq=False)
class Window:
    """Units that are read together; a ``key`` permutes their rows.

    ``full``: the window is a complete group, which may not fit into memory. Only the rows asked for
    are then held, one unit after the other.
    """

    units: Sequence[Unit]
    key: int | None = None
    full: bool = False

    @property
    def rows(self) -> int:
        """The number of rows; they must have been counted."""
        return sum(unit.rows or 0 for unit in self.units)


def windows_of(groups: Sequence[Group], epoch: int) -> Iterator[Window]:
    """An epoch's windows, in order."""
    for number, group in enumerate(groups):
        shuffle = group.shuffle
        if shuffle is None or not group.units:
            yield from (Window((unit,)) for unit in group.units)
            continue
        # With the group's number: two parts of a union must not be shuffled alike.
        key = key_of(shuffle.seed, number, epoch)
        if not shuffle.rows:
            order = permutation(key, len(group.units))
            yield from (Window((group.units[place],)) for place in order.tolist())
        elif _is_full(group, shuffle):
            yield Window(group.units, key, full=True)
        else:
            yield from _windows_of_units(group.units, shuffle.window, key)


def _is_full(group: Group, shuffle: EpochShuffle) -> bool:
    if shuffle.window is None:
        return all(unit.source.in_memory for unit in group.units)
    return shuffle.window == 0


def _windows_of_units(units: Sequence[Unit], rows: int | None, key: int) -> Iterator[Window]:
    window: list[Unit] = []
    filled = 0
    for place in permutation(key, len(units)).tolist():
        unit = units[place]
        window.append(unit)
        # Measure the rows before operations. Rows after them may be counted or not yet, and the
        # windows must be the same in both cases.
        filled += unit.size if rows is None else unit.raw_rows or 0
        enough = len(window) >= WINDOW_UNITS or filled >= WINDOW_MOST_BYTES
        if filled >= rows if rows else filled >= WINDOW_BYTES and enough:
            # Any number that differs between windows would do as the key; the last unit's is there.
            yield Window(tuple(window), key_of(key, place))
            window, filled = [], 0
    if window:
        yield Window(tuple(window), key_of(key, place))


def read_windows(
    windows: Iterator[Window] | Sequence[Window], intervals: Intervals | None, reader: Reader
) -> Iterator[Piece]:
    """The rows of some intervals of the sequence, in order; None is all rows.

    The rows of all windows must have been counted, unless ``intervals`` is None.
    """
    return in_order(_pending(windows, intervals, reader), reader)


def _pending(
    windows: Iterator[Window] | Sequence[Window], intervals: Intervals | None, reader: Reader
) -> Iterator[Pending]:
    import numpy as np

    position = 0
    for window in windows:
        if intervals is None:
            yield from _read(window, None, reader)
            continue
        start, position = position, position + window.rows
        first = int(np.searchsorted(intervals[:, 1], start, side="right"))
        last = int(np.searchsorted(intervals[:, 0], position, side="left"))
        # All that follows is other ranks'. An unfinished iterator would read on.
        if first >= len(intervals):
            return
        if first < last and start < position:
            own = np.clip(intervals[first:last], start, position) - start
            own = own[own[:, 0] < own[:, 1]]
            if len(own):
                # None instead of all row numbers: then nothing is copied.
                complete = len(own) == 1 and own[0, 1] - own[0, 0] == position - start
                yield from _read(window, None if complete else own, reader)


def _read(window: Window, own: Intervals | None, reader: Reader) -> Iterator[Pending]:
    """A window's rows; ``own`` are intervals inside the window, None for all of it."""
    units = window.units
    if window.key is None and units[0].size > STREAMED_BYTES and units[0].keeps_rows:
        yield from _streamed(units[0], own, reader)
        return
    if window.key is None:
        yield reader.begin(units[0], None if own is None else _slice_or_rows(own))
        return
    # Operations that keep the rows may run after the permutation, once for all units.
    commute = all(unit.keeps_rows for unit in units) and _same_operations(units)
    known = all(unit.rows is not None for unit in units)
    if commute and known and all(unit.source.in_memory for unit in units):
        # Taking rows from memory is cheap, so the first batch need not wait for all of them.
        chosen = permutation(window.key, window.rows, None if own is None else _rows(own))
        for begin in range(0, len(chosen), SECTION_ROWS):
            section = chosen[begin : begin + SECTION_ROWS]
            yield from _shuffled(_some(units, section, reader, commute), units, reader, commute)
        return
    if own is not None and window.full:
        # Hold this rank's rows only: read each unit, take them, and drop the rest.
        chosen = permutation(window.key, window.rows, _rows(own))
        yield from _shuffled(_some(units, chosen, reader, commute), units, reader, commute)
        return
    tables = [_table(unit, None, reader, commute) for unit in units]
    rows = sum(table.num_rows for table in tables)
    order = permutation(window.key, rows, None if own is None else _rows(own))
    tables = [table for table in tables if table.num_rows]
    if tables:
        # Take all rows in one go: returning to a column later costs more than the memory.
        table = Concatenated(tables, reader.memory).take(order)
        yield from _shuffled(table, units, reader, commute)


def _streamed(unit: Unit, own: Intervals | None, reader: Reader) -> Iterator[Pending]:
    """A large unit's rows, part by part."""
    import numpy as np

    rows = unit.raw_rows
    if own is None:
        # Not counted yet: the stream ends by itself.
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
            yield reader.pending(Piece(part, not unit.source.in_memory), unit)
        # Nothing of the rest is this rank's: do not read it.
        if position + table.num_rows >= own[-1, 1]:
            return


def _same_operations(units: Sequence[Unit]) -> bool:
    first = units[0]
    return all(
        unit.operations is first.operations or unit.operations == first.operations for unit in units
    )


def _table(
    unit: Unit, chosen: np.ndarray[Any, Any] | None, reader: Reader, commute: bool
) -> pa.Table:
    """A unit's rows; before its operations where these run after the permutation (commute)."""
    if not commute:
        return reader.rows(unit, chosen).table
    raw = reader.raw(unit)
    return raw if chosen is None else take(raw, chosen)


def _some(
    units: Sequence[Unit], chosen: np.ndarray[Any, Any], reader: Reader, commute: bool
) -> pa.Table | None:
    """Rows of several units, numbered consecutively, in the order of ``chosen``."""
    import numpy as np

    # Read each unit once: sort the numbers, take every unit's, and undo the sorting at the end.
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
    # The inverse permutation: row i of the sorted rows belongs to place order[i].
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return Concatenated(tables).take(places) if tables else None


def _shuffled(
    table: pa.Table | None, units: Sequence[Unit], reader: Reader, commute: bool
) -> Iterator[Pending]:
    if table is None:
        return
    piece = Piece(table, True)
    yield reader.pending(piece, units[0]) if commute else Pending(lambda: piece, 0, 0)


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
    # One arange for all intervals, shifted for each: a loop over thousands would take longer.
    starts = np.repeat(own[:, 0] - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
    return starts + np.arange(int(lengths.sum()))


def reseeded(groups: Sequence[Group], seeds: Sequence[int | None]) -> list[Group]:
    """The groups with other seeds; None keeps a group's own."""
    return [
        group
        if seed is None or group.shuffle is None
        else replace(group, shuffle=replace(group.shuffle, seed=seed))
        for group, seed in zip(groups, seeds, strict=True)
    ]


def new_meter(groups: Sequence[Group]) -> Meter | None:
    """A meter of the users' functions that run in this process; None where there are none."""
    chains = {id(unit.operations): unit.operations for group in groups for unit in group.units}
    here = (op for chain in chains.values() for op in chain if op.runs_user_code)
    return Meter() if any(operation.processes == 0 for operation in here) else None


def total_rows(groups: Sequence[Group]) -> int:
    """The number of rows; they must have been counted."""
    return sum(unit.rows or 0 for group in groups for unit in group.units)
