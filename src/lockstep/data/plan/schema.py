"""The columns of a dataset: known from its files, or inferred by transforming some rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.data.arrow.unify import Mismatch, common_schema
from lockstep.data.plan.operations import (
    ConformColumns,
    DropColumns,
    FilterComputed,
    FilterExpression,
    FilterRows,
    Operation,
    RenameColumns,
    Sample,
    SampleByValue,
    SelectColumns,
    SliceRows,
    WithColumn,
)
from lockstep.data.plan.order import Group
from lockstep.data.plan.unit import Piece, Reader, Unit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["inferred_schema", "known_schema", "schema_of", "unified"]

_KEEP_COLUMNS = (FilterComputed, FilterExpression, FilterRows, Sample, SampleByValue, SliceRows)
_CHOOSE_COLUMNS = (SelectColumns, DropColumns, RenameColumns, ConformColumns, WithColumn)
_FEW = 64
"""How many rows are transformed to see their columns: a function may be slow."""


def known_schema(groups: Sequence[Group]) -> pa.Schema | None:
    """The schema where no user's function can change it, otherwise None.

    Raises:
        KeyError: an operation names a column that does not exist.
        ValueError: no type fits a column of all parts of a union.
    """
    first: pa.Schema | None = None
    for unit in _distinct(groups):
        if not all(map(_is_known, unit.operations)):
            return None
        schema = _after(unit.source.schema(), unit.operations)
        first = schema if first is None else unified(first, schema)
    if first is None:
        import pyarrow as pa

        return pa.schema([])
    return first


def _is_known(operation: Operation) -> bool:
    """Whether the columns after it follow from those before it."""
    if isinstance(operation, _KEEP_COLUMNS):
        return True
    return isinstance(operation, _CHOOSE_COLUMNS) and not operation.runs_user_code


def unified(first: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The schema of a union: the columns of both, with types that fit both.

    Raises:
        ValueError: no type fits a column.
    """
    try:
        return common_schema(first, other)
    except Mismatch as error:
        raise ValueError(
            f"A union has parts whose column {error.name!r} is {error.one} and {error.other}; make "
            "them the same with map_batches."
        ) from error


def _distinct(groups: Sequence[Group]) -> list[Unit]:
    """One unit for each combination of a source and operations."""
    seen: dict[tuple[int, ...], Unit] = {}
    for group in groups:
        for unit in group.units:
            # Each unit has a Sample or SliceRows of its own, and neither changes columns.
            chain = tuple(
                id(op) for op in unit.operations if not isinstance(op, (Sample, SliceRows))
            )
            seen.setdefault((id(unit.source), *chain), unit)
    return list(seen.values())


def _after(schema: pa.Schema, operations: Sequence[Operation]) -> pa.Schema:
    table = schema.empty_table()
    for operation in operations:
        if isinstance(operation, _CHOOSE_COLUMNS):
            table = operation.apply(table)
    return table.schema


def schema_of(groups: Sequence[Group]) -> pa.Schema:
    """The schema, inferred where it is not known."""
    schema = known_schema(groups)
    return inferred_schema(groups) if schema is None else schema


def inferred_schema(groups: Sequence[Group]) -> pa.Schema:
    """The schema of the first row; transforms a few rows, then more if none is left of those."""
    import pyarrow as pa

    reader = Reader(exact=False)
    for group in groups:
        for unit in group.units:
            raw = reader.raw(unit)
            for rows in dict.fromkeys((min(_FEW, raw.num_rows), raw.num_rows)):
                table = reader.finish(Piece(raw.slice(0, rows), False), unit).table
                if table.num_rows:
                    return table.schema
    return pa.schema([])
