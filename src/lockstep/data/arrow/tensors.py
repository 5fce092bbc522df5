"""Arrays in rows, as Arrow stores them: of one shape in one buffer, of several with their shapes.

One dimension a row is a fixed-size list, more are a fixed-shape tensor. Rows of different shapes
are a struct of each row's numbers and its shape, or with one dimension a large list: a list that a
user gives is an ordinary one, so each comes back as what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["as_ragged", "from_arrays", "from_dense", "is_ragged", "is_tensor", "ragged_type"]

_NUMBERS, _SHAPE = "tensor_numbers", "tensor_shape"


def from_dense(array: np.ndarray[Any, Any]) -> pa.Array:
    """A column with one entry of the array in each row; without a copy where it is contiguous."""
    import numpy as np
    import pyarrow as pa

    if array.ndim == 1:
        return pa.array(array)
    width = int(np.prod(array.shape[1:]))
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    # Not from_arrays(): it divides by the width, which may be 0 (no image of the batch has a box).
    storage = pa.Array.from_buffers(
        pa.list_(flat.type, width), len(array), [None], null_count=0, children=[flat]
    )
    if array.ndim == 2:
        return storage
    kind = pa.fixed_shape_tensor(flat.type, array.shape[1:])
    return pa.ExtensionArray.from_storage(kind, storage)


def from_arrays(values: Sequence[Any]) -> pa.Array:
    """A column with one array (or tensor, or None) in each row, of one shape or of several."""
    import numpy as np
    import pyarrow as pa

    arrays = [
        None if value is None else np.asarray(value.detach().cpu() if _is_torch(value) else value)
        for value in values
    ]
    present = [array for array in arrays if array is not None]
    types = {array.dtype for array in present if array.size}
    if len(types) == 1 and any(array.dtype not in types for array in present):
        # ``np.array([])`` is of floats, whatever the other rows have.
        (dtype,) = types
        arrays = [a if a is None or a.size else a.astype(dtype) for a in arrays]
        present = [array for array in arrays if array is not None]
    if len(present) == len(arrays) and len({(a.shape, a.dtype) for a in present}) == 1:
        return from_dense(np.stack(present))
    if all(array.ndim == 1 for array in present):
        lists = pa.array(arrays)
        return lists.cast(pa.large_list(lists.type.value_type)) if present else lists
    numbers = pa.array([None if a is None else a.reshape(-1) for a in arrays])
    shapes = pa.array([None if a is None else a.shape for a in arrays], pa.list_(pa.int32()))
    return pa.StructArray.from_arrays([numbers, shapes], [_NUMBERS, _SHAPE])


def _is_torch(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "cpu")


def is_tensor(kind: pa.DataType) -> bool:
    """Whether the rows have arrays of one shape, with more than one dimension."""
    import pyarrow as pa

    return isinstance(kind, pa.FixedShapeTensorType)


def is_ragged(kind: pa.DataType) -> bool:
    """Whether the rows have arrays of several shapes."""
    import pyarrow.types as types

    return (
        types.is_struct(kind)
        and kind.num_fields == 2
        and (kind.field(0).name, kind.field(1).name) == (_NUMBERS, _SHAPE)
    )


def ragged_type(value_type: pa.DataType) -> pa.DataType:
    """The type of a column of arrays of several shapes."""
    import pyarrow as pa

    fields = [(_NUMBERS, pa.list_(value_type)), (_SHAPE, pa.list_(pa.int32()))]
    return pa.struct(fields)


def as_ragged(column: pa.Array, value_type: pa.DataType) -> pa.Array:
    """A column of lists or tensors as arrays of several shapes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if is_ragged(kind):
        return column.cast(ragged_type(value_type))
    lists = (column.storage if is_tensor(kind) else column).cast(pa.list_(value_type))
    if is_tensor(kind):
        sides = np.tile(np.asarray(kind.shape, np.int32), len(column))
        ends = np.arange(len(column) + 1, dtype=np.int32) * len(kind.shape)
    else:
        sides = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int32)
        ends = np.arange(len(column) + 1, dtype=np.int32)
    shapes = pa.ListArray.from_arrays(pa.array(ends), pa.array(sides))
    mask = lists.is_null() if lists.null_count else None
    return pa.StructArray.from_arrays([lists, shapes], [_NUMBERS, _SHAPE], mask=mask)
