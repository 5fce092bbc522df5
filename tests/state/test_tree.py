"""Nested values as JSON: what is read is what was written, and what cannot be kept is named."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.state.tree import TreeDecoder, TreeEncoder


def there_and_back(value: Any) -> Any:
    encoder = TreeEncoder()
    node = json.loads(json.dumps(encoder.encode("entry", value), allow_nan=False))
    leaves = {name: leaf.source for name, leaf in encoder.leaves.items()}

    def none(name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        raise AssertionError(name)

    return TreeDecoder(leaves.__getitem__, leaves.__getitem__, none).decode(node)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**70,
        -0.0,
        math.inf,
        "text",
        b"\0bytes",
        bytearray(b"x"),
        1 + 2j,
        [1, [2.5, ()]],
        {"a": {1: "one", (2, "b"): None}, "dict": {}},
        {1, 2},
        frozenset("a"),
        deque([1, 2], 3),
        Counter({4: 2}),
        defaultdict(list, {"a": [1]}),
        OrderedDict([(1, 2)]),
        torch.Size([1, 2]),
        torch.bfloat16,
        torch.device("cuda", 1),
        np.float32(1.5),
        np.datetime64("2026-01-01"),
    ],
    ids=repr,
)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    got = there_and_back(value)
    assert got == value
    assert type(got) is type(value)


def test_numbers_that_json_lacks() -> None:
    assert math.isnan(there_and_back(float("nan")))
    assert math.copysign(1, there_and_back(-0.0)) == -1


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "bc"]),
        np.array([1 + 2j]),
        np.arange(4, dtype=">i4"),
        np.array(["2026-01-01"], "M8[D]"),
        np.array(3.0),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays(array: Any) -> None:
    got = there_and_back({"x": array})["x"]
    np.testing.assert_array_equal(got, array)
    assert got.dtype == array.dtype
    assert got.shape == array.shape


def test_bytes_of_a_type_that_the_format_lacks_may_begin_anywhere() -> None:
    content = torch.arange(4, dtype=torch.float32).view(torch.complex64)
    odd = torch.empty(content.nbytes + 3, dtype=torch.uint8)
    odd[3:] = content.view(torch.uint8)
    decoder = TreeDecoder(lambda name: odd[3:], lambda name: None, lambda *shard: None)
    found = decoder.decode({"tensor": ["x", "complex64", [2]]})
    assert torch.equal(found, content)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.complex128, torch.bool, torch.bfloat16])
def test_tensors(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0.0, 1.0]]).to(dtype)
    got = there_and_back([tensor])[0]
    assert got.dtype == dtype
    assert torch.equal(got.to(torch.complex128), tensor.to(torch.complex128))


def test_tied_weights_are_kept_once() -> None:
    weight = torch.ones(3)
    encoder = TreeEncoder()
    encoder.encode("model", {"a": weight, "b": weight.view(3)})
    assert list(encoder.leaves) == ["model.a"]


def test_keys_with_dots_do_not_collide() -> None:
    got = there_and_back({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})
    assert (got["a.b"].item(), got["a"]["b"].item()) == (0, 1)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"deep": [1, object()]}, r"entry\[deep\]\[1\]"),
        (lambda: 1, "function"),
        ({"x": torch.zeros(2).to_sparse()}, "sparse"),
        ({"x": torch.empty(2, device="meta")}, "meta"),
        (np.array([object()]), "object"),
        (defaultdict(lambda: 1), "default_factory"),
    ],
)
def test_what_cannot_be_kept_is_named(value: Any, place: str) -> None:
    with pytest.raises(TypeError, match=place) as raised:
        TreeEncoder().encode("entry", value)
    assert "entry" in str(raised.value)
