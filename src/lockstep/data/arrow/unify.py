"""Tables with different columns made alike: missing columns become null, types one that fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.data.arrow.tensors import as_ragged, is_ragged, is_tensor, ragged_type

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Mismatch", "common_schema", "concatenated", "conformed"]


class Mismatch(Exception):
    """No type fits a column in two tables."""

    def __init__(self, name: str, one: pa.DataType, other: pa.DataType) -> None:
        super().__init__(name, one, other)
        self.name, self.one, self.other = name, one, other


def common_schema(first: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The columns of both, those of ``first`` in front, each with a type that fits both.

    Raises:
        Mismatch: no type fits a column.
    """
    import pyarrow as pa

    if first.equals(other):
        return first
    # A column that one of them lacks is null there.
    added = [field.with_nullable(True) for field in other if field.name not in first.names]
    fields = [
        _common_field(field, other.field(field.name))
        if field.name in other.names
        else field.with_nullable(True)
        for field in first
    ]
    return pa.schema([field.remove_metadata() for field in (*fields, *added)])


def _common_field(one: pa.Field, other: pa.Field) -> pa.Field:
    field = one.with_type(_common_type(one.name, one.type, other.type))
    return field.with_nullable(one.nullable or other.nullable)


def _common_type(name: str, one: pa.DataType, other: pa.DataType) -> pa.DataType:
    import pyarrow as pa
    import pyarrow.types as types

    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if any(is_tensor(kind) or is_ragged(kind) for kind in (one, other)):
        values = [_value_type(kind) for kind in (one, other)]
        if values[0] is None or values[1] is None:
            raise Mismatch(name, one, other)
        value = _common_type(name, values[0], values[1])
        if is_tensor(one) and is_tensor(other) and one.shape == other.shape:
            return pa.fixed_shape_tensor(value, one.shape)
        return ragged_type(value)
    kinds = (one, other)
    if any(map(types.is_fixed_size_list, kinds)) and None not in map(_value_type, kinds):
        # Arrays of different lengths, or arrays and lists.
        value = _common_type(name, one.value_type, other.value_type)
        if all(map(types.is_fixed_size_list, kinds)) and one.list_size == other.list_size:
            return pa.list_(value, one.list_size)
        return pa.list_(value) if any(map(types.is_list, kinds)) else pa.large_list(value)
    try:
        schemas = [pa.schema([("", one)]), pa.schema([("", other)])]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException as error:
        raise Mismatch(name, one, other) from error


def _value_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of the numbers in a column of arrays; None where it has no arrays."""
    import pyarrow.types as types

    if is_ragged(kind):
        return kind.field(0).type.value_type
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return kind.value_type if is_tensor(kind) or lists else None


def conformed(table: pa.Table, schema: pa.Schema, given: str = "") -> pa.Table:
    """The table with the columns and types of a schema that ``common_schema`` has made for it.

    Where the user has given the schema instead, ``given`` says how, for errors.

    Raises:
        ValueError: the type cannot hold a value.
    """
    import pyarrow as pa

    if table.schema.equals(schema):
        return table
    columns = [
        _conformed(field.name, table[field.name], field.type, given)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _conformed(
    name: str, column: pa.ChunkedArray, kind: pa.DataType, given: str
) -> pa.ChunkedArray | pa.Array:
    import pyarrow as pa
    import pyarrow.types as types

    if column.type == kind:
        return column
    if types.is_null(column.type):
        return pa.nulls(len(column), kind)
    try:
        if is_ragged(kind):
            value_type = kind.field(0).type.value_type
            return pa.chunked_array([as_ragged(c, value_type) for c in column.chunks], kind)
        if is_tensor(kind):
            chunks = [getattr(c, "storage", c).cast(kind.storage_type) for c in column.chunks]
            chunks = [pa.ExtensionArray.from_storage(kind, c) for c in chunks]
            return pa.chunked_array(chunks, kind)
        if types.is_fixed_size_list(column.type) and types.is_large_list(kind):
            column = column.cast(pa.list_(kind.value_type))
        return column.cast(kind)
    # A number that is too large for floats, say; a user's schema may name any type.
    except (pa.ArrowException, TypeError) as error:
        if given:
            raise ValueError(
                f"Column {name!r} is {column.type} and cannot become {kind}, the type in {given} "
                f"({error}); give another type there."
            ) from error
        raise ValueError(
            f"Column {name!r} is {column.type} in some rows and {kind} in others, which cannot "
            f"hold all values ({error}); make it one type with map_batches."
        ) from error


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables, without a copy where their columns are the same.

    Raises:
        ValueError: no type fits a column of two tables.
    """
    import pyarrow as pa

    schema = tables[0].schema
    try:
        for table in tables[1:]:
            schema = common_schema(schema, table.schema)
    except Mismatch as error:
        raise ValueError(
            f"Column {error.name!r} is {error.one} in some rows and {error.other} in others; "
            "make it one type with map_batches."
        ) from error
    return pa.concat_tables([conformed(table, schema) for table in tables])
