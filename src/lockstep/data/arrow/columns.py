"""One column, as Arrow stores it and as numpy shows it.

Arrays in rows are stored as ``tensors.py`` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.objects import from_objects, is_object, object_values
from lockstep.data.arrow.tensors import as_ragged, from_arrays, from_dense, is_ragged, is_tensor
from lockstep.data.arrow.unify import concatenated

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = [
    "Concatenated",
    "as_written",
    "one_array",
    "take",
    "to_arrow",
    "to_numpy",
    "to_values",
    "writable",
]

_WIDTHS = (8, 16, 32, 64)
_UNITS = {"Y": "D", "M": "D", "W": "D", "D": "D", "h": "s", "m": "s", "generic": "s"}
"""The units of numpy's times that Arrow does not have."""
_LITTLE = 16 << 10
"""So few bytes are copied in less time than it takes to make numpy write to Arrow's memory."""


def to_arrow(values: Any) -> pa.Array | pa.ChunkedArray:
    """An Arrow column from an array, a tensor, a list, a pandas series or Arrow data."""
    import numpy as np
    import pyarrow as pa

    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if hasattr(values, "__arrow_array__"):
        return pa.array(values)
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu().numpy()
    if hasattr(values, "iloc"):
        try:
            return pa.Array.from_pandas(values)
        except pa.ArrowException as error:
            if not _has_no_type(error):
                raise
            return from_objects(list(values))
    if isinstance(values, np.ndarray) or hasattr(values, "__array__"):
        array = np.asarray(values)
        if array.ndim == 0:
            raise ValueError(
                f"a column cannot be the single value {array!r}; give an array with one entry a row"
            )
        if array.dtype != object:
            return from_dense(array)
        values = list(array)
    values = list(values)
    if any(isinstance(value, np.ndarray) or hasattr(value, "detach") for value in values):
        return from_arrays(values)
    if any(isinstance(value, np.datetime64) for value in values):
        known = [value for value in values if value is not None and value == value]
        # Among other values, numpy takes numbers for times; Arrow says what does not fit.
        if all(isinstance(value, np.datetime64) for value in known):
            return pa.array(_times(values))
    try:
        return pa.array(values)
    except pa.ArrowException as error:
        if not _has_no_type(error):
            raise
        return from_objects(values)


def _has_no_type(error: Exception) -> bool:
    """Whether Arrow has no type for a value, rather than no one type for all values."""
    return "did not recognize Python value type" in str(error)


def _times(values: list[Any]) -> np.ndarray[Any, Any]:
    """Times of numpy in the finest of their units that Arrow has, too; others are unknown."""
    import numpy as np

    times = [value if isinstance(value, np.datetime64) else None for value in values]
    array = np.array(times, "datetime64")
    unit = np.datetime_data(array.dtype)[0]
    array = array.astype(f"datetime64[{_UNITS.get(unit, unit)}]")
    # numpy converts a year that does not fit in nanoseconds to another year.
    years = np.array([np.datetime64("NaT", "Y") if t is None else t.astype("M8[Y]") for t in times])
    wrong = np.flatnonzero((array.astype("M8[Y]") != years) & ~np.isnat(years))
    if len(wrong):
        raise ValueError(
            f"the time {times[wrong[0]]} does not fit in the unit {unit!r} of another time in the "
            "column; give times of one unit"
        )
    return array


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as a single array; copied only where it has several chunks."""
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def to_numpy(column: pa.ChunkedArray | pa.Array) -> np.ndarray[Any, Any]:
    """A column as an array; without a copy where it has a fixed width and no nulls.

    Lists of one length become two-dimensional; others, strings and objects are of type object.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.types as types

    array = one_array(column)
    kind = array.type
    if is_tensor(kind):
        if array.null_count == 0:
            return _flat(array.storage).reshape(len(array), *kind.shape)
        return _objects(to_values(array))
    if is_object(kind):
        return _objects(object_values(array))
    if isinstance(kind, pa.BaseExtensionType):
        return to_numpy(array.storage)
    if types.is_fixed_size_list(kind) and array.null_count == 0:
        flat = _flat(array)
        return flat.reshape(len(array), kind.list_size, *flat.shape[1:])
    if (types.is_list(kind) or types.is_large_list(kind)) and array.null_count == 0:
        return _from_lists(array)
    if types.is_dictionary(kind):
        return to_numpy(array.dictionary_decode())
    if is_ragged(kind):
        return _from_ragged(array)
    if array.null_count == 0 and types.is_primitive(kind) and not types.is_boolean(kind):
        try:
            return np.asarray(array.to_numpy(zero_copy_only=True))
        except pa.ArrowInvalid:  # dates and times in some units have another layout in numpy
            pass
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _flat(lists: pa.Array) -> np.ndarray[Any, Any]:
    """The numbers of fixed-size lists; of a slice, only its own."""
    size = lists.type.list_size
    return to_numpy(lists.values.slice(lists.offset * size, len(lists) * size))


def _from_lists(array: pa.Array) -> np.ndarray[Any, Any]:
    import numpy as np
    import pyarrow.types as types

    if len(array) and (types.is_primitive(array.type.value_type)):
        ends = np.asarray(array.offsets)
        lengths = np.diff(ends)
        if (lengths == lengths[0]).all():
            values = array.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
            if values.null_count == 0:
                return to_numpy(values).reshape(len(array), int(lengths[0]))
    return _objects(_list_values(array))


def _from_ragged(array: pa.Array) -> np.ndarray[Any, Any]:
    import numpy as np

    values = to_values(array)
    shapes = {None if value is None else value.shape for value in values}
    if len(shapes) == 1 and None not in shapes and values[0].size == 0:
        return np.stack(values)  # Parquet has no tensors without numbers, so they come as these
    return _objects(values)


def _list_values(array: pa.Array) -> list[Any]:
    import pyarrow.types as types

    if types.is_primitive(array.type.value_type):
        return [None if v.values is None else to_numpy(v.values) for v in array]
    return list(array.to_pylist())


def _objects(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    array = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        array[number] = value
    return array


def to_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """A column's values as Python objects, and as numpy arrays where a row holds an array.

    The arrays can be written to.
    """
    import numpy as np
    import pyarrow.types as types

    array = one_array(column)
    kind = array.type
    if is_tensor(kind):
        if array.null_count == 0:
            return list(writable(to_numpy(array), owned=False))
        rows = array.storage.to_pylist()
        dtype = kind.value_type.to_pandas_dtype()
        return [r if r is None else np.array(r, dtype).reshape(kind.shape) for r in rows]
    if types.is_fixed_size_list(kind) and array.null_count == 0:
        return list(writable(to_numpy(array), owned=False))
    if is_object(kind):
        return object_values(array)
    is_numbers = types.is_large_list(kind) and types.is_primitive(kind.value_type)
    if is_numbers and not array.flatten().null_count:
        return [None if v is None else v.copy() for v in _list_values(array)]
    if is_ragged(kind):
        numbers, shapes = array.flatten()
        dtype = kind.field(0).type.value_type.to_pandas_dtype()
        return [
            n if n is None else np.array(n, dtype).reshape(s)
            for n, s in zip(numbers.to_pylist(), shapes.to_pylist(), strict=True)
        ]
    return list(array.to_pylist())


def take(table: pa.Table, indices: np.ndarray[Any, Any]) -> pa.Table:
    """These rows of a table, in this order."""
    return Concatenated([table]).take(indices)


class Concatenated:
    """The rows of several tables, numbered consecutively, to take in any order.

    Args:
        tables: this list is emptied, so that memory is freed column by column.
        memory: buffers to join chunks in, by column. Passing the same dict again reuses them:
            allocating new memory costs more than the copy.
    """

    def __init__(self, tables: list[pa.Table], memory: dict[int, Any] | None = None) -> None:
        import pyarrow.types as types

        several = len(tables) > 1
        table = concatenated(tables) if several else tables[0]
        tables.clear()
        self._schema, self._rows, pending = table.schema, table.num_rows, table.columns
        del table
        self._columns: list[pa.Array] = []
        while pending:
            column = pending.pop(0)
            plain = types.is_primitive(column.type) and column.type.bit_width in _WIDTHS
            joins = plain and column.num_chunks > 1 and len(column) and not column.null_count
            if memory is not None and joins:
                self._columns.append(_end_to_end(column, len(self._columns), memory))
            else:
                self._columns.append(one_array(column))

    def take(self, indices: np.ndarray[Any, Any]) -> pa.Table:
        """A copy of these rows, in this order."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._rows < 1 << 32:
            indices = indices.astype(np.uint32)
        positions = pa.array(indices)
        # The indices are valid by construction; checking them would double the cost.
        columns = [pc.take(column, positions, boundscheck=False) for column in self._columns]
        return pa.table(columns, schema=self._schema)


def _end_to_end(column: pa.ChunkedArray, place: int, memory: dict[int, Any]) -> pa.Array:
    """The chunks of a column of numbers, joined in a buffer that is reused."""
    import numpy as np
    import pyarrow as pa

    dtype = np.dtype(f"u{column.type.bit_width // 8}")
    pieces = [
        np.frombuffer(chunk.buffers()[1], dtype)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    size = len(column) * dtype.itemsize
    if place not in memory or len(memory[place]) < size:
        memory[place] = np.empty(size, np.uint8)
    out = memory[place][:size].view(dtype)
    np.concatenate(pieces, out=out)
    return pa.Array.from_buffers(column.type, len(column), [None, pa.py_buffer(out)])


class _Memory:
    """An array's memory, presented to numpy as writable; keeps the array alive."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._owner = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def writable(array: np.ndarray[Any, Any], owned: bool) -> np.ndarray[Any, Any]:
    """The same values in writable memory; without a copy of much memory that is ``owned``."""
    import numpy as np

    if array.dtype.kind == "O":
        if isinstance(next((v for v in array if v is not None), None), np.ndarray):
            return _objects([None if value is None else value.copy() for value in array])
        return array
    if array.flags.writeable:  # a view of Arrow's memory never is: this is a copy already
        return array
    if owned and array.nbytes > _LITTLE and array.dtype.kind in "iufcb":
        return np.asarray(_Memory(array))
    return array.copy()


def as_written(name: str, column: pa.ChunkedArray, tensors: bool) -> pa.ChunkedArray:
    """A column for a file: ``tensors`` says whether the format has them; otherwise as lists.

    Arrow writes lists of the fixed size 0 to Parquet, but cannot read them.

    Raises:
        TypeError: the column has Python objects, which no format has.
    """
    import pyarrow as pa
    import pyarrow.types as types

    kind = column.type
    if is_object(kind):
        raise TypeError(
            f"Column {name!r} has Python objects, which files cannot hold; turn them into numbers, "
            "text or dicts with map, or leave the column out with drop_columns."
        )
    if is_tensor(kind) and tensors and 0 in kind.shape:
        return pa.chunked_array([as_ragged(c, kind.value_type) for c in column.chunks])
    if isinstance(kind, pa.BaseExtensionType) and not tensors:
        column = pa.chunked_array([c.storage for c in column.chunks], kind.storage_type)
        kind = column.type
    if types.is_fixed_size_list(kind) and kind.list_size == 0:
        return column.cast(pa.list_(kind.value_type))
    return column
