"""Python objects in rows, where Arrow has no type for them: a column of pickles.

The type is not registered with Arrow. So a file that says it has such a column is read as bytes,
and reading a file never executes anything. Only in tables that lockstep's own processes send each
other it becomes a column of objects again (``restored``), and of those the sender has removed what
a file only says (``unmarked``).
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["from_objects", "is_object", "object_type", "object_values", "restored", "unmarked"]

_NAME = "lockstep.object"
_FIELD_KEY = b"ARROW:extension:name"


@cache
def object_type() -> pa.DataType:
    """The type of a column of Python objects."""
    import pyarrow as pa

    class ObjectType(pa.ExtensionType):  # type: ignore[misc]  # an untyped base
        def __init__(self) -> None:
            super().__init__(pa.large_binary(), _NAME)

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> ObjectType:
            return cls()

        def __reduce__(self) -> Any:
            return object_type, ()

        def __str__(self) -> str:
            return "python object"

    return ObjectType()


def is_object(kind: pa.DataType) -> bool:
    """Whether a column has Python objects."""
    return getattr(kind, "extension_name", None) == _NAME


def from_objects(values: Sequence[Any]) -> pa.Array:
    """A column of Python objects; None is null.

    Raises:
        TypeError: an object cannot be pickled.
    """
    import cloudpickle
    import pyarrow as pa

    pickles = []
    for value in values:
        try:
            # By value where it must be: another process cannot import what a script defines.
            pickles.append(None if value is None else cloudpickle.dumps(value))
        except Exception as error:
            raise TypeError(
                f"a {type(value).__name__} has no type in Arrow and cannot be pickled "
                f"({type(error).__name__}: {error})"
            ) from error
    storage = pa.array(pickles, pa.large_binary())
    return pa.ExtensionArray.from_storage(object_type(), storage)


def object_values(array: pa.Array) -> list[Any]:
    """The objects of a column."""
    return [None if data is None else pickle.loads(data) for data in array.storage.to_pylist()]


def unmarked(table: pa.Table) -> pa.Table:
    """A table to be sent: no column of something else says that it has Python objects."""
    import pyarrow as pa

    fields = list(table.schema)
    false = [
        place
        for place, field in enumerate(fields)
        if _says_objects(field) and not is_object(field.type)
    ]
    if not false:
        return table
    for place in false:
        fields[place] = fields[place].remove_metadata()
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields, table.schema.metadata))


def restored(table: pa.Table) -> pa.Table:
    """A table that another process of lockstep has sent, with its columns of objects."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if _says_objects(field):
            chunks = [
                pa.ExtensionArray.from_storage(object_type(), chunk)
                for chunk in table.column(place).chunks
            ]
            column = pa.chunked_array(chunks, object_type())
            table = table.set_column(place, field.name, column)
    return table


def _says_objects(field: pa.Field) -> bool:
    return (field.metadata or {}).get(_FIELD_KEY) == _NAME.encode()
