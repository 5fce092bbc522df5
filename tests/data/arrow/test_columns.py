"""Arrow columns as numpy arrays."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

import lockstep.data


def test_numpy_batches() -> None:
    import datetime

    day = datetime.datetime(2024, 1, 2)
    dataset = lockstep.data.from_arrow(
        pa.table(
            {
                "i": pa.array([1, None], pa.int32()),
                "f": np.array([1, 2], np.float16),
                "b": [True, False],
                "s": ["a", None],
                "t": [day, day],
                "l": [[1, 2], [3, 4]],
                "r": [[1], [2, 3]],
                "d": pa.array(["x", "y"]).dictionary_encode(),
                "n": [{"a": 1}, {"a": 2}],
                "y": [b"1", b"2"],
            }
        )
    )
    batch = dataset.take_batch(2)
    assert math.isnan(batch["i"][1])
    assert batch["f"].dtype == np.float16
    assert batch["b"].dtype == bool
    assert batch["s"].tolist() == ["a", None]
    assert batch["t"][0] == np.datetime64(day)
    assert batch["l"].shape == (2, 2)
    assert [part.tolist() for part in batch["r"]] == [[1], [2, 3]]
    assert batch["d"].tolist() == ["x", "y"]
    assert batch["n"].tolist() == [{"a": 1}, {"a": 2}]
    assert batch["y"].tolist() == [b"1", b"2"]
    streamed = next(iter(dataset.iter_batches(batch_size=2)))
    assert {k: str(v.dtype) for k, v in streamed.items()} == {
        k: str(v.dtype) for k, v in batch.items()
    }


def test_arrays_of_different_shapes() -> None:
    arrays = [np.zeros((1, 2)), np.ones((3, 1)), np.full((2, 2), 7.0)]
    dataset = lockstep.data.from_items([{"x": array} for array in arrays])
    for got in (
        [row["x"] for row in dataset.take_all()],
        list(dataset.take_batch(3)["x"]),
        [a for b in dataset.repartition(3).iter_batches(batch_size=2) for a in b["x"]],
    ):
        for one, two in zip(got, arrays, strict=True):
            np.testing.assert_array_equal(one, two)


def test_lists_of_one_length_in_some_batches_only() -> None:
    dataset = lockstep.data.from_items([{"x": [1, 2]}] * 4 + [{"x": [1]}] * 4)
    batches = list(dataset.repartition(4).iter_batches(batch_size=3))
    assert [batch["x"].dtype == object for batch in batches] == [False, True, False]
    assert [list(map(len, batch["x"])) for batch in batches] == [[2, 2, 2], [2, 1, 1], [1, 1]]


def test_whole_numbers_beside_an_unknown_one_stay_whole() -> None:
    table = pa.table({"a": pa.array([[2**60 + 1, None]], pa.large_list(pa.int64()))})
    assert lockstep.data.from_arrow(table).take_all() == [{"a": [2**60 + 1, None]}]
