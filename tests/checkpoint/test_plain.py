"""Dicts as data: what is read is exactly what was written, and reading executes nothing."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import random
from collections import OrderedDict, namedtuple
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.checkpoint import Checkpoint
from lockstep.checkpoint.plain import decode_plain, encode_plain
from lockstep.errors import CheckpointError
from lockstep.run_layout import DICT_FILE, PICKLED_DICT_FILE
from tests.train.torch.ranks import in_a_worker

torch = pytest.importorskip("torch")

Pair = namedtuple("Pair", "a b")


class Number(IntEnum):
    ONE = 1


class Text(str):
    """Not a plain string."""


def through(data: dict[Any, Any]) -> dict[Any, Any]:
    """The dict written and read: as data, and in two chunks."""
    content = encode_plain(data)
    assert content is not None
    half = len(content) // 2
    return decode_plain([content[:half], b"", content[half:]])


def assert_same(one: Any, other: Any) -> None:
    """Equal in value and in type, all the way down."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for (key, value), (key_there, value_there) in zip(one.items(), other.items(), strict=True):
            assert_same(key, key_there)
            assert_same(value, value_there)
        assert getattr(one, "_metadata", None) == getattr(other, "_metadata", None)
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for value, there in zip(one, other, strict=True):
            assert_same(value, there)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
        assert other.flags.writeable
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.requires_grad is other.requires_grad
        assert one.detach().reshape(-1).tolist() == other.detach().reshape(-1).tolist()
    elif isinstance(one, float) and math.isnan(one):
        assert math.isnan(other)
    else:
        assert one == other
    if isinstance(one, (int, float, complex)):  # 1 and True, 0.0 and -0.0
        assert repr(one) == repr(other)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.builds(bytearray, st.binary())
    | st.sampled_from([np.float32(1.5), np.int8(-3), np.bool_(True), np.datetime64("2026-01-01")]),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.booleans(), st.none()), inner)
        | st.dictionaries(st.text(), inner).map(OrderedDict)
        | st.sets(st.integers() | st.text())
        | st.frozensets(st.binary())
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.text() | st.integers(), PLAIN))
def test_plain_values_come_back_exactly(data: dict[Any, Any]) -> None:
    if encode_plain(data) is None:
        assert_same(Checkpoint.from_dict(data).to_dict(), data)
    else:
        assert_same(through(data), data)


ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
    np.arange(10)[::3],
    np.array(3.5),
    np.zeros((0, 4), np.float32),
    np.array(["a", "bcd"]),
    np.array([b"a", b"bc"]),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array(["2026-01-01"], "M8[D]"),
    np.arange(3, dtype=">i4"),
    np.array([1, 2], np.float16),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str}{array.shape}")
def test_arrays(array: Any) -> None:
    back = through({"a": array})["a"]
    assert_same(array, back)
    assert back.flags.f_contiguous == array.flags.f_contiguous or array.strides[0] > array.itemsize


@pytest.mark.parametrize(
    "dtype",
    ["float32", "bfloat16", "float16", "int64", "bool", "complex64", "uint8", "float8_e5m2"],
)
def test_tensors_of_any_type(dtype: str) -> None:
    tensor = torch.tensor([[0, 1, 0], [1, 1, 0]]).to(getattr(torch, dtype))
    for value in (tensor, tensor[0, 1], tensor[:, :0], tensor.t(), tensor[:, ::2]):
        back = through({"t": value})["t"]
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        assert back.to(torch.complex64).tolist() == value.to(torch.complex64).tolist()


def test_the_order_of_dimensions_is_kept() -> None:
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    back = through({"t": images})["t"]
    assert back.stride() == images.stride()
    assert torch.equal(back, images)


def test_a_slice_does_not_keep_what_it_was_cut_from() -> None:
    content = encode_plain({"t": torch.zeros(1000, 1000)[:2], "a": np.zeros((1000, 1000))[:, :1]})
    assert content is not None
    assert len(content) < 20_000


@in_a_worker
def test_what_training_functions_keep() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    data = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "parameter": model[0].weight,
        "random": [random.getstate(), np.random.get_state(), torch.get_rng_state()],
    }
    back = through(data)
    assert back["model"]._metadata == model.state_dict()._metadata
    assert_same(data, back)
    model.load_state_dict(back["model"])
    optimizer.load_state_dict(back["optimizer"])
    random.setstate(back["random"][0])


def test_one_object_in_two_places_is_one_object() -> None:
    array, tensor, shared = np.ones(2), torch.ones(2), [1]
    back = through({"a": array, "b": (array, tensor), "c": tensor})
    assert back["b"][0] is back["a"]
    assert back["b"][1] is back["c"]
    pickled = Checkpoint.from_dict({"a": shared, "b": shared}).to_dict()
    assert pickled["a"] is pickled["b"]


def test_what_is_read_is_apart_from_what_was_written() -> None:
    data = {"a": np.ones(2), "t": torch.ones(2), "l": [1], "b": bytearray(b"x")}
    checkpoint = Checkpoint.from_dict(copy.deepcopy(data))
    first = checkpoint.to_dict()
    for value in first.values():
        value[0] = 7
    assert_same(checkpoint.to_dict(), data)


def inside_itself() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["self"] = [data]
    return data


def deep() -> dict[str, Any]:
    data: dict[str, Any] = {}
    for _ in range(100):
        data = {"d": [data]}
    return data


@pytest.mark.parametrize(
    "data",
    [
        {"p": Pair(1, 2)},
        {"e": Number.ONE},
        {Text("k"): Text("v")},
        {"p": Path("x")},
        {"huge": 10**5000},
        {"half": "\ud83d"},
        {"halves": "\ud83d" + "\ude00"},
        {"o": np.array([{}, None])},
        {"s": np.zeros(2, [("a", "i4"), ("b", "f8")])},
        {"u": np.str_("a\0")},
        {"sparse": torch.eye(2).to_sparse()},
        {"meta": torch.empty(2, device="meta")},
        {"size": torch.Size([2])},
        {"expanded": torch.zeros(1).expand(1000)},
    ],
    ids=lambda data: str(next(iter(data))),
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch 2.11, of its own accord
def test_anything_else_is_pickled(data: dict[Any, Any]) -> None:
    assert encode_plain(data) is None
    checkpoint = Checkpoint.from_dict(data)
    assert list(checkpoint.files()) == [PICKLED_DICT_FILE]
    back = checkpoint.to_dict()
    for key, value in data.items():
        assert type(back[key]) is type(value)


def test_what_holds_itself_and_what_is_deep() -> None:
    back = Checkpoint.from_dict(inside_itself()).to_dict()
    assert back["self"][0]["self"] is back["self"]
    assert Checkpoint.from_dict(deep()).to_dict() == deep()


def test_reading_executes_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "executed"),)

    made = Checkpoint.from_dict({"a": 1, "w": torch.ones(2), "b": pickle.dumps(Evil())})
    folder = tmp_path / "c"
    made.to_directory(folder)
    assert os.listdir(folder) == [DICT_FILE]
    assert Checkpoint(folder).to_dict()["a"] == 1
    assert not (tmp_path / "executed").exists()
    (folder / DICT_FILE).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match="cannot be read here"):
        Checkpoint(folder).to_dict()
    assert not (tmp_path / "executed").exists()


def file_of(tree: Any, sizes: list[int] = [], rest: bytes = b"") -> bytes:  # noqa: B006
    header = json.dumps({"sizes": sizes, "dict": tree}).encode()
    return b"lockstep-dict-1\n" + len(header).to_bytes(8, "little") + header + rest


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"lockstep-dict-1\n",
        b"lockstep-dict-1\n" + b"\xff" * 8,
        b"lockstep-dict-1\n" + (2).to_bytes(8, "little") + b"[]",
        file_of([1]),
        file_of({"import": "os"}),
        file_of({"dict": {}, "list": []}),
        file_of({"items": [[[1], 2]]}),
        file_of({"dict": {"t": {"tensor": [0, "load", [1], None, False, False]}}}, [1], b"x"),
        file_of({"dict": {"t": {"tensor": [0, "float32", [9], None, False, False]}}}, [4], b"1234"),
        file_of({"dict": {"t": {"tensor": [0, "uint8", [9], None, False, False]}}}, [9], b"1"),
        file_of({"dict": {"a": {"array": [0, "O", [1], False]}}}, [8], b"12345678"),
        file_of({"dict": {"a": {"array": [5, "u1", [1], False]}}}, [1], b"1"),
        file_of({"dict": {"a": {"array": [0, "u1", [1], False]}}}, [-1], b"1"),
        file_of({"dict": {"a": {"scalar": ["O", "0000000000000000"]}}}),
    ],
)
def test_damaged_content_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / DICT_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{tmp_path.name}.*cannot be read here"):
        Checkpoint(tmp_path).to_dict()
