"""Datasets of data in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pytest

import lockstep.data
from tests.data.datasets import column


def test_items() -> None:
    assert lockstep.data.from_items([1, 2]).take_all() == [{"item": 1}, {"item": 2}]
    rows = [{"a": 1, "b": "x"}, {"a": 2}]
    assert lockstep.data.from_items(rows).take_all() == [rows[0], {"a": 2, "b": None}]
    assert lockstep.data.from_items(range(100), override_num_blocks=7).num_blocks() == 7
    assert lockstep.data.from_items([]).count() == 0
    arrays = lockstep.data.from_items([{"x": np.zeros((2, 2))}] * 3)
    assert arrays.take_batch(3)["x"].shape == (3, 2, 2)
    with pytest.raises(ValueError, match="override_num_blocks=0"):
        lockstep.data.from_items([1], override_num_blocks=0)

    with pytest.raises(ValueError, match=r"from_items, column 'b': Could not convert 'x'"):
        lockstep.data.from_items([{"a": 1, "b": 1}, {"a": 1, "b": "x"}])
    assert lockstep.data.from_items(range(9), parallelism=3).num_blocks() == 3


def test_pandas() -> None:
    import pandas as pd

    with pytest.raises(ValueError, match=r"from_pandas, column 'b': Could not convert 'x'"):
        lockstep.data.from_pandas(pd.DataFrame({"a": [1, 2], "b": [1, "x"]}))
    with pytest.raises(TypeError, match=r"from_pandas\(\) got 3; give a data frame"):
        lockstep.data.from_pandas([3])  # type: ignore[list-item]
    frame = pd.DataFrame({"x": [1, 2], "s": ["a", None]}, index=[5, 6])
    dataset = lockstep.data.from_pandas(frame)
    pd.testing.assert_frame_equal(dataset.to_pandas(), frame.reset_index(drop=True))
    assert lockstep.data.from_pandas([frame, frame]).count() == 4
    more = lockstep.data.from_pandas([frame, pd.DataFrame({"y": [1], "x": [None]})])
    assert more.take_all()[1:] == [{"x": 2, "s": None, "y": None}, {"x": None, "s": None, "y": 1}]
    with pytest.raises(ValueError, match=r"Column 'x' is int64 in some rows and .*string"):
        lockstep.data.from_pandas([frame, pd.DataFrame({"x": ["a"]})])
    with pytest.raises(ValueError, match="give at least one data frame"):
        lockstep.data.from_pandas([])


def test_arrow_without_a_copy() -> None:
    table = pa.table({"x": np.arange(1000)})

    class Frame:
        """A frame of another library."""

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return table.__arrow_c_stream__(requested_schema)

    address = table["x"].chunk(0).buffers()[1].address
    for given in (table, Frame(), table.to_batches()[0], [table], table.to_reader()):
        got = lockstep.data.from_arrow(given).take_batch(1000, batch_format="pyarrow")
        assert got["x"].chunk(0).buffers()[1].address == address
        assert got.equals(table)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert lockstep.data.from_arrow(sink.getvalue().to_pybytes()).count() == 1000
    with pytest.raises(TypeError, match="from_arrow\\(\\) got a int"):
        lockstep.data.from_arrow(3)


def test_arrow_views_are_made_plain() -> None:
    if not hasattr(pa, "string_view"):
        pytest.skip("this Arrow has no views")
    views = pa.array(["a", None, "b"], pa.string_view())
    dataset = lockstep.data.from_arrow(pa.table({"s": views, "x": [1, 2, 3]}))
    assert [str(field.type) for field in dataset.schema()] == ["large_string", "int64"]
    assert dataset.sort("s", descending=True).take(1) == [{"s": "b", "x": 3}]
    assert dataset.filter(expr="s == 'a'").count() == 1


def test_numpy() -> None:
    array = np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(lockstep.data.from_numpy(array).to_numpy("data"), array)
    both = lockstep.data.from_numpy([array, array])
    assert both.to_numpy("data").shape == (8, 3)
    named = lockstep.data.from_numpy({"a": array, "b": np.arange(4)})
    assert named.take(1)[0]["b"] == 0
    with pytest.raises(ValueError, match=r"different lengths: \{'a': 4, 'b': 3\}"):
        lockstep.data.from_numpy({"a": array, "b": np.arange(3)})


def test_ranges() -> None:
    assert lockstep.data.range(3).take_all() == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert lockstep.data.range(100, override_num_blocks=8).num_blocks() == 8
    assert lockstep.data.range(0).count() == 0
    batch = lockstep.data.range_tensor(3, shape=(2, 2)).take_batch(3)["data"]
    np.testing.assert_array_equal(batch, np.arange(3)[:, None, None] * np.ones((1, 2, 2)))
    with pytest.raises(ValueError, match=r"range\(-1\)"):
        lockstep.data.range(-1)


def test_torch() -> None:
    import torch
    from torch.utils.data import Dataset as TorchDataset
    from torch.utils.data import IterableDataset, TensorDataset

    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    dataset = lockstep.data.from_torch(TensorDataset(x, y))
    batch = next(iter(dataset.iter_torch_batches(batch_size=6)))
    assert torch.equal(batch["item_0"], x)
    assert torch.equal(batch["item_1"], y)

    class Dicts(TorchDataset[dict[str, int]]):
        def __len__(self) -> int:
            return 3000

        def __getitem__(self, place: int) -> dict[str, int]:
            return {"x": place}

    dataset = lockstep.data.from_torch(Dicts())
    assert (dataset.count(), dataset.num_blocks()) == (3000, 3)
    assert column(dataset, "x") == list(range(3000))

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(5))

    assert column(lockstep.data.from_torch(Stream()), "item") == list(range(5))


def test_huggingface() -> None:
    datasets = pytest.importorskip("datasets")
    source = datasets.Dataset.from_dict({"x": list(range(10))})
    assert column(lockstep.data.from_huggingface(source), "x") == list(range(10))
    chosen = source.select([3, 1])
    assert column(lockstep.data.from_huggingface(chosen), "x") == [3, 1]
    assert lockstep.data.from_huggingface(source, parallelism=4, concurrency=2).num_blocks() == 4
    assert lockstep.data.from_huggingface(chosen, parallelism=2).num_blocks() == 2
    with pytest.raises(ValueError, match="choose one of them"):
        lockstep.data.from_huggingface(datasets.DatasetDict({"train": source}))


def test_references_to_blocks() -> None:
    import pandas as pd

    import lockstep

    frames = [lockstep.put(pd.DataFrame({"a": [n]})) for n in (1, 2)]
    dataset = lockstep.data.from_pandas_refs(frames)
    assert column(dataset, "a") == [1, 2]
    assert [f["a"].tolist() for f in lockstep.get(dataset.to_pandas_refs())] == [[1, 2]]
    tables = lockstep.get(dataset.to_arrow_refs())
    assert column(lockstep.data.from_arrow_refs([lockstep.put(t) for t in tables]), "a") == [1, 2]
    arrays = lockstep.get(dataset.to_numpy_refs(column="a"))
    assert column(lockstep.data.from_numpy_refs(lockstep.put(arrays[0])), "data") == [1, 2]
    assert list(lockstep.get(dataset.to_numpy_refs())[0]) == ["a"]


def test_dates_of_numpy() -> None:
    dates = [np.datetime64("2020-01-31"), None, np.datetime64("2020-02")]
    dataset = lockstep.data.from_items([{"d": date} for date in dates])
    assert [str(row["d"]) for row in dataset.take_all()] == ["2020-01-31", "None", "2020-02-01"]


@pytest.mark.parametrize(
    ("times", "kind", "expected"),
    [
        (["2020-01-01T05", None], pa.timestamp("s"), ["2020-01-01 05:00:00", "None"]),
        (["2020-01-01T05:06"], pa.timestamp("s"), ["2020-01-01 05:06:00"]),
        (
            ["2020-01-01", "2020-01-01T01:00:00.500"],
            pa.timestamp("ms"),
            ["2020-01-01 00:00:00", "2020-01-01 01:00:00.500000"],
        ),
        (["NaT", "2020-01-01T01:00:00"], pa.timestamp("s"), ["None", "2020-01-01 01:00:00"]),
    ],
)
def test_times_of_numpy(times: list[str | None], kind: pa.DataType, expected: list[str]) -> None:
    unknown = np.datetime64("NaT", "s")
    known = [None if t is None else unknown if t == "NaT" else np.datetime64(t) for t in times]
    rows = [{"t": time} for time in known]
    table = lockstep.data.from_items(rows).to_arrow()
    assert table["t"].type == kind
    assert [str(value) for value in table["t"].to_pylist()] == expected


def test_times_of_numpy_that_do_not_fit_are_an_error() -> None:
    day = np.datetime64("2020-01-01")
    for other in (3, "x"):
        with pytest.raises((ValueError, TypeError), match="'t'"):
            lockstep.data.from_items([{"t": day}, {"t": other}]).take_all()
    far = [{"t": np.datetime64("3000")}, {"t": np.datetime64("2020-01-01T00:00:00", "ns")}]
    with pytest.raises(ValueError, match="3000 does not fit in the unit 'ns'"):
        lockstep.data.from_items(far).take_all()
