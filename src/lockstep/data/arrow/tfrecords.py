"""TFRecord files of ``tf.train.Example``, read and written without TensorFlow.

A file is a sequence of records: a length, its checksum, the bytes, their checksum. An Example is a
protocol buffer with named features, each a list of bytes, of floats or of integers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

__all__ = ["decode_example", "encode_example", "pack_record", "records_of"]

_LENGTH = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_POLYNOMIAL = 0x82F63B78


@cache
def _table() -> tuple[int, ...]:
    table = []
    for start in range(256):
        value = start
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


def _checksum(data: bytes) -> int:
    """The CRC-32C of bytes, masked as the format asks for."""
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def pack_record(data: bytes) -> bytes:
    """A record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (length, _CHECKSUM.pack(_checksum(length)), data, _CHECKSUM.pack(_checksum(data)))
    )


def records_of(data: memoryview) -> Iterator[memoryview]:
    """The records of a file. The checksums of the lengths are checked, those of the bytes not.

    Raises:
        ValueError: this is no TFRecord file, or its end is missing.
    """
    place = 0
    while place < len(data):
        if len(data) - place < _LENGTH.size:
            raise ValueError("the last record of the TFRecord file is cut off")
        length, checksum = _LENGTH.unpack_from(data, place)
        if checksum != _checksum(bytes(data[place : place + 8])):
            raise ValueError(f"there is no record of a TFRecord file at byte {place}")
        start = place + _LENGTH.size
        place = start + length + _CHECKSUM.size
        if place > len(data):
            raise ValueError("the last record of the TFRecord file is cut off")
        yield data[start : start + length]


def decode_example(data: memoryview) -> dict[str, list[Any]]:
    """The features of an Example: name → values."""
    features: dict[str, list[Any]] = {}
    for number, message in _fields(data):
        if number != 1:
            continue
        for inner, entry in _fields(message):
            if inner == 1:
                parts = dict(_fields(entry))
                if isinstance(parts.get(1), int):
                    raise ValueError("a feature of an Example has a number as its name")
                features[bytes(parts[1]).decode()] = _values(parts.get(2, b""))
    return features


def encode_example(features: Mapping[str, Any]) -> bytes:
    """An Example with these features; None is a feature without values.

    Raises:
        TypeError: a value is neither a number, text, bytes nor a list of these.
    """
    entries = []
    for name, value in features.items():
        body = _field(1, name.encode()) + _field(2, _feature(name, value))
        entries.append(_field(1, body))
    return _field(1, b"".join(entries))


def _feature(name: str, value: Any) -> bytes:
    values = list(_flat(value))
    if not values:
        return b""
    if all(isinstance(one, (bytes, str)) for one in values):
        encoded = (one.encode() if isinstance(one, str) else one for one in values)
        return _field(1, b"".join(_field(1, one) for one in encoded))
    if all(isinstance(one, int) for one in values):  # a bool is one, too
        return _field(3, _field(1, b"".join(_varint(one & 0xFFFFFFFFFFFFFFFF) for one in values)))
    if all(isinstance(one, (int, float)) for one in values):
        return _field(2, _field(1, struct.pack(f"<{len(values)}f", *values)))
    raise TypeError(
        f"write_tfrecords(): column {name!r} has a {type(values[0]).__name__}; a feature holds "
        "numbers, text or bytes, or lists of them."
    )


def _flat(value: Any) -> Iterator[Any]:
    if value is None:
        return
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_varint(data: Any, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number of an Example has too many bytes")


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """The fields of a message: number, and its bytes or number."""
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        kind = tag & 7
        if kind == 0:
            value, place = _read_varint(data, place)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, place = _read_varint(data, place)
        else:
            size = {1: 8, 5: 4}[kind]
        if place + size > len(data):
            raise ValueError("a field of an Example is cut off")
        yield tag >> 3, data[place : place + size]
        place += size


def _values(feature: Any) -> list[Any]:
    """The values of a Feature. Lists of numbers may be packed or not."""
    found: list[Any] = []
    for kind, message in _fields(feature):
        for number, value in _fields(message):
            if number != 1:
                continue
            if isinstance(value, int) and kind in (1, 2):
                raise ValueError("a feature of an Example has a value of another kind")
            if kind == 1:
                found.append(bytes(value))
            elif kind == 2:
                found.extend(struct.unpack(f"<{len(value) // 4}f", value))
            elif isinstance(value, int):
                found.append(_signed(value))
            else:
                place = 0
                while place < len(value):
                    one, place = _read_varint(value, place)
                    found.append(_signed(one))
    return found


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
