"""A dict of plain values, arrays and tensors as bytes without a pickle: reading executes nothing.

::

    lockstep-dict-1\\n      16 bytes
    <length>               of the header: 8 bytes, little-endian
    <header>               JSON: {"sizes": [bytes of each buffer], "dict": <the dict>}
    <buffers>              one after the other: the content of arrays, tensors and bytes

In the header None, bools, numbers, strings and lists are themselves. Any other value is an object
with one entry, from its type to what it consists of: see ``_Encoder``. A dict with anything else in
it is not plain, and is pickled: what is read is always exactly what was written.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["decode_plain", "encode_plain"]

_MAGIC = b"lockstep-dict-1\n"
_LENGTH = 8

_ITSELF = frozenset((type(None), bool, int, float, str))
_ONLY_STRINGS = frozenset((str,))
_ARRAY_KINDS = "biufcmMSU"
_SCALAR_KINDS = "biufcmM"
_DEPTH = 50
"""How deep containers may be nested: a reader's stack may be shorter than the writer's was."""

_dump = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


class _NotPlain(Exception):
    """A value has no exact form here."""


def encode_plain(data: Mapping[Any, Any]) -> bytes | None:
    """The dict as bytes; None if something in it is not plain."""
    encoder = _Encoder()
    try:
        tree = encoder.encode(dict(data))
        sizes = [memoryview(buffer).nbytes for buffer in encoder.buffers]
        header = _dump({"sizes": sizes, "dict": tree}).encode()
    except (_NotPlain, ValueError):  # an integer of thousands of digits; half of a surrogate pair
        return None
    length = len(header).to_bytes(_LENGTH, "little")
    return b"".join((_MAGIC, length, header, *encoder.buffers))


class _Encoder:
    """Turns values into what JSON can hold; ``buffers`` has the rest."""

    def __init__(self) -> None:
        self.buffers: list[Any] = []
        # Not imported here: a value of a library's type exists only if the library is loaded.
        self._numpy: Any = sys.modules.get("numpy")
        self._torch: Any = sys.modules.get("torch")
        self._depth = 0
        self._containers: set[int] = set()
        # By id: tied weights are written once, and are one tensor again when they are read.
        self._arrays: dict[int, Any] = {}

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ITSELF:
            return value
        known = self._by_type.get(kind)
        if known is not None:
            self._depth += 1
            if self._depth > _DEPTH:
                raise _NotPlain
            # Only exact types are known. A subclass may have state that would be lost.
            node = known(self, value)
            self._depth -= 1
            return node
        if self._torch is not None and kind in (self._torch.Tensor, self._torch.nn.Parameter):
            return self._once(value, self._tensor)
        if self._numpy is not None and kind is self._numpy.ndarray:
            return self._once(value, self._array)
        if self._numpy is not None and isinstance(value, self._numpy.generic):
            return self._scalar(value)
        raise _NotPlain

    def _list(self, value: list[Any]) -> list[Any]:
        self._enter(value)
        return self._all(value)

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        return {"tuple": self._all(value)}

    def _set(self, value: set[Any] | frozenset[Any]) -> Any:
        self._enter(value)
        return {type(value).__name__: self._all(value)}

    def _dict(self, value: dict[Any, Any]) -> Any:
        self._enter(value)
        if not _ONLY_STRINGS.issuperset(map(type, value)):
            return {"items": self._items(value)}
        if _ITSELF.issuperset(map(type, value.values())):
            return {"dict": value}
        return {"dict": {key: self.encode(inner) for key, inner in value.items()}}

    def _ordered(self, value: OrderedDict[Any, Any]) -> Any:
        self._enter(value)
        attributes = dict(vars(value))
        # torch's state dicts have the versions of the modules' formats there.
        metadata = self.encode(attributes.pop("_metadata", None))
        if attributes:
            raise _NotPlain
        return {"OrderedDict": [self._items(value), metadata]}

    def _items(self, value: Mapping[Any, Any]) -> list[Any]:
        return [[self.encode(key), self.encode(inner)] for key, inner in value.items()]

    def _all(self, values: Iterable[Any]) -> list[Any]:
        values = list(values)
        if _ITSELF.issuperset(map(type, values)):  # a list of a million words takes no loop
            return values
        return [self.encode(inner) for inner in values]

    def _enter(self, container: Any) -> None:
        """Refuse what is in two places: a copy would not be the same object in both."""
        if id(container) in self._containers:
            raise _NotPlain
        self._containers.add(id(container))

    def _complex(self, value: complex) -> Any:
        return {"complex": [value.real, value.imag]}

    def _bytes(self, value: bytes | bytearray) -> Any:
        if type(value) is bytearray:
            self._enter(value)
        return {type(value).__name__: self._buffer(value)}

    def _buffer(self, content: Any) -> int:
        self.buffers.append(content)
        return len(self.buffers) - 1

    def _once(self, value: Any, encode: Callable[[Any], Any]) -> Any:
        if id(value) not in self._arrays:
            self._arrays[id(value)] = encode(value)
        return self._arrays[id(value)]

    def _array(self, value: Any) -> Any:
        self._check_dtype(value.dtype, _ARRAY_KINDS)
        # The order in memory is kept: code may depend on it, and the copy is spared.
        by_column = value.flags.f_contiguous and not value.flags.c_contiguous
        rows = self._numpy.ascontiguousarray(value.T if by_column else value)
        buffer = self._buffer(rows.reshape(-1).view(self._numpy.uint8))
        return {"array": [buffer, value.dtype.str, list(value.shape), by_column]}

    def _scalar(self, value: Any) -> Any:
        self._check_dtype(value.dtype, _SCALAR_KINDS)
        if self._numpy.dtype(value.dtype.str).type is not type(value):
            raise _NotPlain
        return {"scalar": [value.dtype.str, value.tobytes().hex()]}

    def _check_dtype(self, dtype: Any, kinds: str) -> None:
        plain = dtype.kind in kinds and dtype.itemsize and dtype.metadata is None
        if not plain or self._numpy.dtype(dtype.str) != dtype:
            raise _NotPlain

    def _tensor(self, value: Any) -> Any:
        strided = value.layout is self._torch.strided and not value.is_quantized
        if (
            not strided
            or value.is_meta
            or value.is_conj()
            or value.is_neg()
            or vars(value)
            or value._backward_hooks
        ):
            raise _NotPlain
        content = value.detach().cpu()
        order = None
        if not content.is_contiguous():
            # Another order of the dimensions is kept: images may be stored by channel, or not.
            steps = content.stride()
            order = sorted(range(content.dim()), key=lambda dimension: -steps[dimension])
            if not content.permute(order).is_contiguous():
                order = None
            if content.nbytes > content.untyped_storage().nbytes():
                raise _NotPlain  # expanded: many elements share one place in memory
        rows = (content if order is None else content.permute(order)).contiguous()
        try:
            buffer = self._buffer(rows.reshape(-1).view(self._torch.uint8).numpy())
        except RuntimeError:  # a type that torch cannot show as bytes
            raise _NotPlain from None
        is_parameter = type(value) is not self._torch.Tensor
        dtype = str(value.dtype).removeprefix("torch.")
        shape = list(rows.shape)
        return {"tensor": [buffer, dtype, shape, order, value.requires_grad, is_parameter]}

    _by_type: Mapping[type, Callable[[_Encoder, Any], Any]] = {
        list: _list,
        tuple: _tuple,
        dict: _dict,
        OrderedDict: _ordered,
        set: _set,
        frozenset: _set,
        complex: _complex,
        bytes: _bytes,
        bytearray: _bytes,
    }


def decode_plain(chunks: Iterable[bytes]) -> dict[Any, Any]:
    """The dict of the content of a file, given in chunks.

    Raises:
        Exception: the content is damaged, or needs a library that is missing. Of any type.
    """
    stream = _Stream(chunks)
    if stream.take(len(_MAGIC)) != _MAGIC:
        raise ValueError(f"it does not start with {_MAGIC!r}")
    header = json.loads(stream.take(int.from_bytes(stream.take(_LENGTH), "little")))
    decoder = _Decoder(stream, header["sizes"])
    found = decoder.decode(header["dict"])
    if type(found) is not dict:
        raise ValueError(f"it has a {type(found).__name__}, not a dict")
    return found


class _Stream:
    """Bytes from chunks, each copied once."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def take(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._some(size)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def fill(self, target: memoryview) -> None:
        while target:
            part = self._some(len(target))
            target[: len(part)] = part
            target = target[len(part) :]

    def _some(self, most: int) -> memoryview:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise ValueError("it ends too early")
            self._rest = memoryview(chunk)
        part, self._rest = self._rest[:most], self._rest[most:]
        return part


class _Decoder:
    """The opposite of ``_Encoder``. The buffers are in the order in which the header names them."""

    def __init__(self, stream: _Stream, sizes: list[int]) -> None:
        self._stream = stream
        self._sizes = sizes
        self._next = 0
        self._arrays: dict[int, Any] = {}

    def decode(self, node: Any) -> Any:
        if type(node) is list:
            return self._all(node)
        if type(node) is not dict:
            return node
        ((kind, parts),) = node.items()
        return self._by_kind[kind](self, parts)

    def _all(self, nodes: list[Any]) -> list[Any]:
        if _ITSELF.issuperset(map(type, nodes)):
            return nodes
        return [self.decode(node) for node in nodes]

    def _dict(self, parts: dict[str, Any]) -> dict[str, Any]:
        if _ITSELF.issuperset(map(type, parts.values())):
            return parts
        return {key: self.decode(node) for key, node in parts.items()}

    def _items(self, parts: list[Any]) -> dict[Any, Any]:
        return {self.decode(key): self.decode(node) for key, node in parts}

    def _ordered(self, parts: list[Any]) -> OrderedDict[Any, Any]:
        metadata = self.decode(parts[1])
        found = OrderedDict((self.decode(key), self.decode(node)) for key, node in parts[0])
        if metadata is not None:
            vars(found)["_metadata"] = metadata
        return found

    def _take(self, buffer: int) -> int:
        """The size of a buffer, which is next in the file."""
        # Buffers are read once, front to back: a checkpoint need not fit in memory twice.
        if buffer != self._next:
            raise ValueError(f"its buffer {buffer} is not where it belongs")
        self._next += 1
        return self._sizes[buffer]

    def _bytes(self, buffer: int) -> bytes:
        return self._stream.take(self._take(buffer))

    def _array(self, parts: list[Any]) -> Any:
        import numpy as np

        buffer, dtype, shape, by_column = parts
        if buffer not in self._arrays:
            content: Any = np.empty(self._take(buffer), np.uint8)
            self._stream.fill(memoryview(content))
            rows = content.view(_checked_dtype(np, dtype))
            made = rows.reshape(shape[::-1]).T if by_column else rows.reshape(shape)
            self._arrays[buffer] = made
        return self._arrays[buffer]

    def _scalar(self, parts: list[Any]) -> Any:
        import numpy as np

        return np.frombuffer(bytes.fromhex(parts[1]), _checked_dtype(np, parts[0]))[0]

    def _tensor(self, parts: list[Any]) -> Any:
        import torch

        buffer, name, shape, order, requires_grad, is_parameter = parts
        if buffer not in self._arrays:
            # The name comes from a file: anything else in torch must not be called.
            dtype = getattr(torch, name)
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"{name!r} is not a type of a tensor's elements")
            size = self._take(buffer)
            content: Any = torch.empty(size, dtype=torch.uint8, device="cpu")
            if size:
                self._stream.fill(memoryview(content.numpy()))
            made = content.view(dtype).reshape(shape)
            if order is not None:
                made = made.permute([order.index(dimension) for dimension in range(len(order))])
            if is_parameter:
                made = torch.nn.Parameter(made, requires_grad)
            self._arrays[buffer] = made if is_parameter else made.requires_grad_(requires_grad)
        return self._arrays[buffer]

    _by_kind: Mapping[str, Callable[[_Decoder, Any], Any]] = {
        "array": _array,
        "bytearray": lambda self, parts: bytearray(self._bytes(parts)),
        "bytes": _bytes,
        "complex": lambda self, parts: complex(*parts),
        "dict": _dict,
        "frozenset": lambda self, parts: frozenset(self._all(parts)),
        "items": _items,
        "OrderedDict": _ordered,
        "scalar": _scalar,
        "set": lambda self, parts: set(self._all(parts)),
        "tensor": _tensor,
        "tuple": lambda self, parts: tuple(self._all(parts)),
    }


def _checked_dtype(np: Any, name: str) -> Any:
    dtype = np.dtype(name)
    if dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"{name!r} is not a type of an array's elements")
    return dtype
