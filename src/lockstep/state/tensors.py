"""The safetensors format: where each tensor lies in a file, as pure values. No tensor is here.

::

    <length>     of the header: 8 bytes, little-endian
    <header>     JSON: {name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}
    <data>       the tensors one after the other, without gaps

The header is padded with spaces, so that the data begins at a page, and tensors with larger
elements come first, so that each one is aligned: a file that is mapped into memory is used as
it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["ITEM_SIZES", "Layout", "Place", "Slot", "data_start", "lay_out", "parse_header"]

PAGE = 4096
_LENGTH = 8
_LARGEST_HEADER = 100 << 20
"""What readers accept. A larger number is not a length: the file is another kind of file."""

ITEM_SIZES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
"""The types of elements in the format, and the bytes of each."""


class Slot(NamedTuple):
    """A tensor that a file will hold."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class Place(NamedTuple):
    """Where a tensor lies: ``start`` counts from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class Layout(NamedTuple):
    """A file before it is written: everything that is no data, and where each tensor goes."""

    pieces: tuple[tuple[int, bytes], ...]
    """What is around the data, and where."""
    places: dict[str, Place]
    size: int


def lay_out(slots: Iterable[Slot], metadata: Mapping[str, str]) -> Layout:
    """Plan a file. ``metadata`` is the format's own place for texts."""
    ordered = sorted(slots, key=lambda slot: -ITEM_SIZES[slot.dtype])
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, dtype, shape, nbytes in ordered:
        offsets = [at, at + nbytes]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        at += nbytes
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    start = -(-(_LENGTH + len(text)) // PAGE) * PAGE
    text = text.ljust(start - _LENGTH)
    places = {}
    at = start
    for name, dtype, shape, nbytes in ordered:
        places[name] = Place(dtype, shape, at, nbytes)
        at += nbytes
    return Layout(((0, len(text).to_bytes(_LENGTH, "little") + text),), places, at)


def data_start(head: bytes) -> int:
    """Where the data begins, from the first eight bytes of a file.

    Raises:
        ValueError: this is not such a file.
    """
    length = int.from_bytes(head[:_LENGTH], "little")
    if len(head) < _LENGTH or not 0 < length <= _LARGEST_HEADER:
        raise ValueError("it does not begin as a safetensors file does")
    return _LENGTH + length


def parse_header(head: bytes, size: int) -> dict[str, Place]:
    """Where each tensor lies, from everything before the data; ``size`` is that of the file.

    Raises:
        ValueError: the header is damaged, or the file is too short.
    """
    start = data_start(head)
    entries = json.loads(head[_LENGTH:start])
    if not isinstance(entries, dict):
        raise ValueError("its header is not an object")
    places = {}
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        count = ITEM_SIZES[entry["dtype"]]
        for length in entry["shape"]:
            count *= length
        if not 0 <= begin <= end or end - begin != count or start + end > size:
            raise ValueError(f"{name!r} does not fit in its {size} bytes: the file is cut off")
        places[name] = Place(entry["dtype"], tuple(entry["shape"]), start + begin, end - begin)
    return places
