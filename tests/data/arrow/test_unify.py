"""Tables whose columns differ, made alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lockstep.data.arrow.columns import to_arrow, to_values
from lockstep.data.arrow.unify import Mismatch, common_schema, concatenated


def tensors(*shape: int, dtype: Any = np.float32) -> pa.Table:
    return pa.table({"x": to_arrow(np.arange(np.prod(shape), dtype=dtype).reshape(shape))})


def test_a_missing_column_becomes_null() -> None:
    table = concatenated([pa.table({"x": [1], "y": ["a"]}), pa.table({"z": [1.5], "x": [2]})])
    assert table.to_pylist() == [{"x": 1, "y": "a", "z": None}, {"x": 2, "y": None, "z": 1.5}]


def test_a_missing_column_may_be_null() -> None:
    """Also where its own table declares that it never is."""
    never = pa.schema([pa.field("x", pa.int64(), nullable=False), ("y", pa.int64())])
    for tables in (
        [never.empty_table(), pa.table({"y": [1]})],
        [pa.table({"y": [1]}), never.empty_table()],
        [never.empty_table(), pa.table({"x": [None], "y": [1]})],
    ):
        assert concatenated(tables).schema.field("x").nullable
    assert not concatenated([never.empty_table()] * 2).schema.field("x").nullable


def test_a_number_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"'x' is int64 .*9223372036854775807.* with map_batches"):
        concatenated([pa.table({"x": [2**63 - 1]}), pa.table({"x": [0.5]})])


@pytest.mark.parametrize(
    "other",
    [
        pa.array([1.5]),
        pa.array(["a"]),
        pa.array([[1, 2]]),
        to_arrow(np.ones((1, 2, 3))),
        to_arrow([np.ones((1, 2)), np.ones((2, 1))]),
        to_arrow(np.ones((1, 0))),
    ],
)
def test_a_column_of_nulls_takes_the_others_type(other: Any) -> None:
    for tables in ([pa.nulls(2), other], [other, pa.nulls(2)]):
        table = concatenated([pa.table({"x": values}) for values in tables])
        assert (table.schema.field("x").type, table["x"].null_count) == (other.type, 2)


def test_arrays_of_different_shapes() -> None:
    table = concatenated(
        [tensors(2, 1, 2), tensors(1, 0, 2), tensors(1, 3, dtype=np.int16), tensors(2, 1, 2)]
    )
    shapes = [value.shape for value in to_values(table["x"])]
    assert shapes == [(1, 2), (1, 2), (0, 2), (3,), (1, 2), (1, 2)]
    assert [value.tolist() for value in to_values(table["x"])][1::2] == [
        [[2.0, 3.0]],
        [0.0, 1.0, 2.0],
        [[2.0, 3.0]],
    ]
    ragged = pa.table({"x": to_arrow([np.ones((1, 2)), None, np.ones((2, 1))])})
    both = concatenated([ragged, tensors(1, 2, 2), pa.table({"x": [[7.0], None]})])
    shapes = [None if value is None else value.shape for value in to_values(both["x"])]
    assert shapes == [(1, 2), None, (2, 1), (2, 2), (1,), None]


def test_tensors_of_one_shape_stay_tensors() -> None:
    table = concatenated([tensors(2, 1, 2), tensors(1, 1, 2, dtype=np.float64)])
    assert table.schema.field("x").type == pa.fixed_shape_tensor(pa.float64(), (1, 2))
    assert to_values(table["x"])[1].tolist() == [[2.0, 3.0]]


def test_what_does_not_fit() -> None:
    with pytest.raises(Mismatch):
        common_schema(pa.schema([("x", pa.string())]), pa.schema([("x", pa.int64())]))
    with pytest.raises(ValueError, match=r"Column 'x' is .*tensor.* in some rows and string in"):
        concatenated([tensors(1, 2, 2), pa.table({"x": ["a"]})])
