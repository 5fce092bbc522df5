"""The safetensors format: what is written is read by the safetensors package, and the reverse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.state.tensors import PAGE, Slot, data_start, lay_out, parse_header


def test_a_file_is_read_by_the_safetensors_package(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "half": np.arange(3, dtype=np.float16),
        "long": np.array(7, dtype=np.int64),
        "none": np.zeros((0, 4), np.float32),
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    }
    names = {"float16": "F16", "int64": "I64", "float32": "F32"}
    layout = lay_out(
        (Slot(n, names[str(a.dtype)], a.shape, a.nbytes) for n, a in arrays.items()), {"a": "b"}
    )
    content = bytearray(layout.size)
    content[: len(layout.pieces[0][1])] = layout.pieces[0][1]
    for name, place in layout.places.items():
        assert place.start % arrays[name].itemsize == 0
        content[place.start : place.start + place.nbytes] = arrays[name].tobytes()
    (tmp_path / "a.safetensors").write_bytes(content)
    read = load_file(tmp_path / "a.safetensors")
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
    assert data_start(bytes(content[:8])) % PAGE == 0
    assert parse_header(layout.pieces[0][1], layout.size) == layout.places


def test_a_file_of_the_package_is_read(tmp_path: Path) -> None:
    save_file({"x": np.arange(5, dtype=np.int32)}, tmp_path / "x.safetensors")
    content = (tmp_path / "x.safetensors").read_bytes()
    (place,) = parse_header(content[: data_start(content)], len(content)).values()
    assert (place.dtype, place.shape, place.nbytes) == ("I32", (5,), 20)


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 16, b"\2\0\0\0\0\0\0\0[]"], ids=repr)
def test_another_file_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"safetensors|object"):
        parse_header(content, len(content))


def test_a_file_that_is_cut_off_is_refused() -> None:
    layout = lay_out([Slot("x", "F32", (4,), 16)], {})
    with pytest.raises(ValueError, match="cut off"):
        parse_header(layout.pieces[0][1], layout.size - 1)
