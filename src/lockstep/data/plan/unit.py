"""Units, which datasets consist of: a block, or a part of one, with the operations on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.columns import take
from lockstep.data.plan.meter import Meter
from lockstep.data.plan.operations import (
    DropColumns,
    FilterExpression,
    MapBatches,
    Operation,
    RenameColumns,
    Sample,
    SelectColumns,
    SliceRows,
    UserOperation,
    add_note,
    check_columns,
)
from lockstep.data.sources.base import Block, Source

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np
    import pyarrow as pa

__all__ = ["Pending", "Piece", "Reader", "Unit", "count_rows"]


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
        # Cut before the operations: what is not needed is not computed.
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


@dataclass(frozen=True, eq=False)
class Pending:
    """Rows that were read, and the operations that are to be done on them by ``finish``.

    ``finish`` may be called in another thread. ``processes`` is how many processes the operations
    use, ``size`` the number of bytes before them.
    """

    finish: Callable[[], Piece]
    processes: int
    size: int


class Reader:
    """Reads units; keeps the last block, since parts of it often follow.

    Not thread-safe, except that pending rows may be finished in other threads.
    """

    def __init__(
        self, threads: bool = True, exact: bool = True, meter: Meter | None = None
    ) -> None:
        self._threads = threads
        self._exact = exact
        self._meter = meter
        self._cancelled = False
        self._last: tuple[Any, pa.Table] | None = None
        self._lock = threading.Lock()
        self._tasks: set[Future[pa.Table]] = set()
        self.memory: dict[int, Any] = {}
        """Buffers that shuffled windows join their rows in, one window after the other."""

    def raw(self, unit: Unit) -> pa.Table:
        """A unit's rows before its operations, except that columns are chosen already."""
        columns, names, _ = _projection(unit)
        key = (id(unit.source), unit.block.where, columns)
        if self._last is not None and self._last[0] == key:
            table = self._last[1]
        else:
            self._last = None  # free it first: two large blocks at once may not fit
            table = self._read(unit, columns)
            if unit.block.rows is not None and table.num_rows != unit.block.rows:
                raise ValueError(
                    f"A block{unit.where} has {table.num_rows} rows where {unit.block.rows} were "
                    "counted; do not change files while they are read (and give CSV with line "
                    "breaks inside values parse_options with newlines_in_values=True)."
                )
            # Only a part of the block was asked for: other parts are likely to follow.
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
        return self.begin(unit, chosen).finish()

    def begin(self, unit: Unit, chosen: np.ndarray[Any, Any] | slice | None = None) -> Pending:
        """A unit's rows, as of ``rows``; its operations are pending."""
        table = self.raw(unit)
        # A block that is kept will be handed out again: no function may write to it.
        owned = not unit.source.in_memory and self._last is None
        # Choose before the operations where that is the same: they then run on fewer rows.
        if unit.keeps_rows:
            return self.pending(Piece(*_choose(table, chosen, owned)), unit)
        return self.pending(Piece(table, owned), unit, chosen)

    def pending(
        self, piece: Piece, unit: Unit, chosen: np.ndarray[Any, Any] | slice | None = None
    ) -> Pending:
        """The rows of ``raw`` with the unit's remaining operations; then some are chosen."""
        operations = _projection(unit)[2]

        def finish() -> Piece:
            done = self.run(piece, operations, unit)
            return done if chosen is None else Piece(*_choose(done.table, chosen, done.owned))

        processes = max((operation.processes for operation in operations), default=0)
        return Pending(finish, processes, piece.table.nbytes if processes else 0)

    def finish(self, piece: Piece, unit: Unit) -> Piece:
        """The rows of ``raw`` after the unit's remaining operations."""
        return self.pending(piece, unit).finish()

    def cancel(self) -> None:
        """Nobody needs what was sent to processes; what was not begun there is not done."""
        with self._lock:
            self._cancelled = True
            tasks = list(self._tasks)
        for task in tasks:
            task.cancel()

    def _elsewhere(self, operation: UserOperation, table: pa.Table) -> pa.Table:
        from concurrent.futures import CancelledError

        # One lock for the check and the submit: a task submitted after cancel() would run on.
        with self._lock:
            if self._cancelled:
                raise CancelledError
            tasks = operation.submit(table)
            self._tasks.update(tasks)
        try:
            return operation.collect(table, tasks)
        finally:
            with self._lock:
                self._tasks = {task for task in self._tasks if not task.done()}

    def run(self, piece: Piece, operations: Iterable[Operation], unit: Unit) -> Piece:
        """The rows after some of a unit's operations; stops early once no rows are left."""
        table, owned = piece.table, piece.owned
        exact = self._exact or unit.exact
        for operation in operations:
            before = table.num_rows
            # A user's function need not handle an empty batch.
            if before == 0:
                break
            try:
                if isinstance(operation, UserOperation) and operation.processes:
                    table = self._elsewhere(operation, table)
                elif operation.runs_user_code and self._meter is not None:
                    with self._meter.running():
                        table = operation.apply(table, owned)
                else:
                    table = operation.apply(table, owned)
            except Exception as error:
                if unit.block.name:
                    add_note(error, f"(in rows of {unit.block.name})")
                raise
            if operation.keeps_rows and table.num_rows != before:
                if exact or not isinstance(operation, MapBatches) or operation.keeps:
                    raise ValueError(
                        f"{operation.text} returned {table.num_rows} rows for {before}; give "
                        "map_batches preserves_rows=False where a function changes the number of "
                        "rows."
                    )
                operation.changes_rows(before, table.num_rows)
            # A user's function may keep the memory it returns, unless it has run elsewhere.
            kept = operation.runs_user_code or operation.shares_memory
            owned = operation.processes > 0 or (owned and not kept)
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
    # The filter needs columns that are dropped later, so they are read, too.
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
    if not origin:  # a column is needed to know the number of rows
        return None, None, unit.operations
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
    # One thread each: count_rows runs many of these in parallel already.
    counted: int = Reader(threads=False).rows(unit).table.num_rows
    return counted


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
