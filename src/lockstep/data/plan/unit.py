"""Units, which datasets consist of: a block, or a part of one, with the operations on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.columns import take
from lockstep.data.plan.operations import (
    DropColumns,
    FilterExpression,
    MapBatches,
    Operation,
    RenameColumns,
    Sample,
    SelectColumns,
    SliceRows,
    check_columns,
)
from lockstep.data.sources.base import Block, Source

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["Piece", "Reader", "Unit", "count_rows"]


@dataclass(frozen=True, eq=False)
class Unit:
    """Rows ``start`` to ``stop`` of a block (None: to its end), and the operations on them.

    ``rows`` is the number of rows after the operations, None until it is known. ``exact``: an
    operation that should keep the rows and does not is an error, since rows were counted on it.
    """

    source: Source
    block: Block
    operations: tuple[Operation, ...] = ()
    start: int = 0
    stop: int | None = None
    rows: int | None = None
    exact: bool = False

    @property
    def keeps_rows(self) -> bool:
        """Whether output row i is made of input row i."""
        return all(operation.keeps_rows for operation in self.operations)

    @property
    def seen_to_change_rows(self) -> bool:
        """Whether a function that should keep the rows was seen not to."""
        return any(operation.seen_to_change_rows for operation in self.operations)

    @property
    def raw_rows(self) -> int | None:
        """The number of rows before the operations, None until it is known."""
        if self.stop is not None:
            return self.stop - self.start
        return None if self.block.rows is None else self.block.rows - self.start

    @property
    def size(self) -> int:
        """About how many bytes the rows have before the operations."""
        if self.raw_rows is None or not self.block.rows:
            return self.block.size
        return self.block.size * self.raw_rows // self.block.rows

    @property
    def where(self) -> str:
        """For an error."""
        return f" of {self.block.name!r}" if self.block.name else ""

    def part(self, start: int, stop: int) -> Unit:
        """Rows ``start`` to ``stop`` of the result; its number of rows must be known."""
        if (start, stop) == (0, self.rows):
            return self
        if self.keeps_rows:
            start, stop = self.start + start, self.start + stop
            return replace(self, start=start, stop=stop, rows=stop - start, exact=True)
        operations = (*self.operations, SliceRows(start, stop))
        return replace(self, operations=operations, rows=stop - start)


@dataclass(frozen=True, eq=False)
class Piece:
    """A table on its way to the user; ``owned``: no one else uses its memory."""

    table: pa.Table
    owned: bool


class Reader:
    """Reads units; not thread-safe. Keeps the last block, since parts of it often follow."""

    def __init__(self, threads: bool = True, exact: bool = True) -> None:
        self._threads = threads
        self._exact = exact
        self._last: tuple[Any, pa.Table] | None = None
        self.memory: dict[int, Any] = {}
        """Buffers that shuffled windows join their rows in, one window after the other."""

    def raw(self, unit: Unit) -> pa.Table:
        """A unit's rows before its operations, except that columns are chosen already."""
        columns, names, _ = _projection(unit)
        key = (id(unit.source), unit.block.where, columns)
        if self._last is not None and self._last[0] == key:
            table = self._last[1]
        else:
            self._last = None
            table = self._read(unit, columns)
            if unit.block.rows is not None and table.num_rows != unit.block.rows:
                raise ValueError(
                    f"A block{unit.where} has {table.num_rows} rows where {unit.block.rows} were "
                    "counted; do not change files while they are read (and give CSV with line "
                    "breaks inside values parse_options with newlines_in_values=True)."
                )
            if unit.raw_rows != unit.block.rows:
                self._last = (key, table)
        if unit.raw_rows != table.num_rows:
            table = table.slice(unit.start, unit.raw_rows)
        if names is not None and table.column_names != names:
            table = table.rename_columns(names)
        return table

    def _read(self, unit: Unit, columns: tuple[str, ...] | None) -> pa.Table:
        if unit.block.rows != 0:
            return unit.source.read(unit.block, columns, self._threads)
        table = unit.source.schema().empty_table()
        return table if columns is None else table.select(list(columns))

    def stream(self, unit: Unit) -> Iterator[tuple[pa.Table, int]]:
        """The rows of ``raw`` in parts, each with the position of its first row in the unit.

        The parts cover the block: rows before the unit (negative positions) and after it, too.
        """
        columns, names, _ = _projection(unit)
        position = -unit.start
        for table in unit.source.stream(unit.block, columns, self._threads):
            if names is not None and table.column_names != names:
                table = table.rename_columns(names)
            yield table, position
            position += table.num_rows

    def rows(self, unit: Unit, chosen: np.ndarray[Any, Any] | slice | None = None) -> Piece:
        """A unit's rows: all, a slice, or the chosen ones in this order."""
        table = self.raw(unit)
        operations = _projection(unit)[2]
        owned = not unit.source.in_memory and self._last is None
        if unit.keeps_rows:
            table, owned = _choose(table, chosen, owned)
            return self.run(Piece(table, owned), operations, unit)
        piece = self.run(Piece(table, owned), operations, unit)
        table, owned = _choose(piece.table, chosen, piece.owned)
        return Piece(table, owned)

    def finish(self, piece: Piece, unit: Unit) -> Piece:
        """The rows of ``raw`` after the unit's remaining operations."""
        return self.run(piece, _projection(unit)[2], unit)

    def run(self, piece: Piece, operations: Iterable[Operation], unit: Unit) -> Piece:
        """The rows after some of a unit's operations; stops early once no rows are left."""
        table, owned = piece.table, piece.owned
        exact = self._exact or unit.exact
        for operation in operations:
            before = table.num_rows
            if before == 0:
                break
            try:
                table = operation.apply(table, owned)
            except Exception as error:
                if unit.block.name and hasattr(error, "add_note"):
                    error.add_note(f"(in rows of {unit.block.name})")
                raise
            if operation.keeps_rows and table.num_rows != before:
                if exact or not isinstance(operation, MapBatches) or operation.keeps:
                    raise ValueError(
                        f"{operation.text} returned {table.num_rows} rows for {before}; give "
                        "map_batches preserves_rows=False where a function changes the number of "
                        "rows."
                    )
                operation.changes_rows(before, table.num_rows)
            # A user's function may keep the memory it returns.
            owned = owned and not operation.runs_user_code
        return Piece(table, owned)


def _choose(
    table: pa.Table, chosen: np.ndarray[Any, Any] | slice | None, owned: bool
) -> tuple[pa.Table, bool]:
    if chosen is None:
        return table, owned
    if isinstance(chosen, slice):
        return table.slice(chosen.start, chosen.stop - chosen.start), owned
    return take(table, chosen), True


def _projection(
    unit: Unit,
) -> tuple[tuple[str, ...] | None, list[str] | None, tuple[Operation, ...]]:
    """The columns to read, their new names, and the operations that remain."""
    filtered = _filtered_then_selected(unit)
    if filtered is not None:
        return filtered, None, unit.operations
    done = 0
    rest: list[Operation] = []
    choices: list[Operation] = []
    for operation in unit.operations:
        if isinstance(operation, (SelectColumns, DropColumns, RenameColumns)):
            choices.append(operation)
        elif isinstance(operation, (Sample, SliceRows)):
            rest.append(operation)  # uses no column, so columns may be chosen before
        else:
            break
        done += 1
    if not choices:
        return None, None, unit.operations
    origin = {name: name for name in unit.source.schema().names}
    for operation in choices:
        if isinstance(operation, SelectColumns):
            names = check_columns(operation.names, list(origin), operation.doing)
            origin = {name: origin[name] for name in names}
        elif isinstance(operation, DropColumns):
            gone = check_columns(operation.names, list(origin), "drop_columns")
            origin = {name: old for name, old in origin.items() if name not in gone}
        elif isinstance(operation, RenameColumns):
            renamed = operation.renamed(list(origin))
            origin = dict(zip(renamed, origin.values(), strict=True))
    return tuple(origin.values()), list(origin), (*rest, *unit.operations[done:])


def _filtered_then_selected(unit: Unit) -> tuple[str, ...] | None:
    """The columns to read where the operations are filters, then a selection; else None."""
    columns: set[str] = set()
    schema: pa.Schema | None = None
    for operation in unit.operations:
        if isinstance(operation, FilterExpression):
            schema = unit.source.schema() if schema is None else schema
            needed = operation.needs(schema)
            if needed is None:
                return None
            columns.update(needed)
        elif isinstance(operation, SelectColumns) and schema is not None:
            columns.update(check_columns(operation.names, schema.names, operation.doing))
            return tuple(name for name in schema.names if name in columns)
        else:
            return None
    return None


def _count(unit: Unit) -> int:
    """The number of rows of a unit whose operations change it."""
    first, *others = unit.operations
    if (
        isinstance(first, FilterExpression)
        and all(operation.keeps_rows for operation in others)
        and unit.raw_rows == unit.block.rows != 0
    ):
        rows = unit.source.count_matching(unit.block, first.expression)
        if rows is not None:
            return rows
    return Reader(threads=False).rows(unit).table.num_rows  # type: ignore[no-any-return]


def count_rows(units: Sequence[Unit], threads: int) -> list[Unit]:
    """The same units with their rows counted; reads and transforms blocks where needed."""
    unknown = [number for number, unit in enumerate(units) if unit.rows is None]
    if not unknown:
        return list(units)
    from concurrent.futures import ThreadPoolExecutor

    def counted(number: int) -> Unit:
        unit = units[number]
        block = unit.block
        if block.rows is None:
            block = replace(block, rows=unit.source.count(block))
            unit = replace(unit, block=block)
        if unit.keeps_rows:
            return replace(unit, rows=unit.raw_rows)
        return replace(unit, rows=_count(unit))

    found = list(units)
    with ThreadPoolExecutor(max(1, min(threads, len(unknown))), "lockstep-data-count") as pool:
        for number, unit in zip(unknown, pool.map(counted, unknown), strict=True):
            found[number] = unit
    return found
