"""String views: other libraries export them, but Arrow cannot take, filter or sort them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["without_views"]


def without_views(table: pa.Table) -> pa.Table:
    """A table without string views, as Polars exports them; their columns are copied."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        kind = _without_view(field.type)
        if kind == field.type:
            continue
        column = table.column(place)
        try:
            plain = _cast(column, kind)
        except pa.ArrowNotImplementedError as error:
            raise TypeError(
                f"Column {field.name!r} is of type {field.type}, which pyarrow {pa.__version__} "
                "cannot convert; use a newer pyarrow, or give a table without views."
            ) from error
        table = table.set_column(place, field.with_type(kind), plain)
    return table


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.types as types

    if not types.is_dictionary(kind):
        return column.cast(kind)
    return pa.chunked_array(
        [
            pa.DictionaryArray.from_arrays(c.indices, c.dictionary.cast(kind.value_type))
            for c in column.chunks
        ],
        kind,
    )


def _without_view(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa
    import pyarrow.types as types

    name = str(kind)
    if name in ("string_view", "binary_view"):
        return pa.large_string() if name == "string_view" else pa.large_binary()
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_view(kind.value_type)))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_view(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_without_view(field.type)) for field in kind])
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_view(kind.value_type), kind.ordered)
    return kind
