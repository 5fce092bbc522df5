"""Nested values of a training state as JSON, with their tensors aside: reading executes nothing.

None, bools, numbers, strings and lists are themselves. Any other value is an object with one entry,
from its kind to what it consists of: ``{"tuple": [1, 2]}``, ``{"tensor": ["model.weight"]}``.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["Leaf", "TreeDecoder", "TreeEncoder", "numpy_dtype", "torch_dtype"]

_ITSELF = frozenset((type(None), bool, int, str))
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (dict, list, set, int, float)}
_DEPTH = 60

_TORCH = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
}
_TORCH_BACK = {name: torch for torch, name in _TORCH.items()}
_NUMPY = {
    "|b1": "BOOL",
    "|u1": "U8",
    "|i1": "I8",
    "<i2": "I16",
    "<u2": "U16",
    "<f2": "F16",
    "<i4": "I32",
    "<u4": "U32",
    "<f4": "F32",
    "<i8": "I64",
    "<u8": "U64",
    "<f8": "F64",
}
_NUMPY_BACK = {name: numpy for numpy, name in _NUMPY.items()}


class Leaf(NamedTuple):
    """A tensor or an array of a state, where it lies now."""

    name: str
    """In the file: the way to it, joined by dots."""
    source: Any
    """The part of a tensor that this rank has, or an array."""
    dtype: str
    """In the words of the file's format."""
    shape: tuple[int, ...]
    nbytes: int
    is_torch: bool
    chunk: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Of a shard: the shape of the complete tensor, and where the shard begins in it."""
    is_copy: bool = False
    """Another rank writes the same shard."""


class TreeEncoder:
    """Turns values into what JSON can hold; ``leaves`` has the tensors and arrays.

    Raises TypeError for a value that it cannot keep; the message names the way to it.
    """

    def __init__(self) -> None:
        self.leaves: dict[str, Leaf] = {}
        # Not imported here: a value of a library's type exists only if the library is loaded.
        self._numpy: Any = sys.modules.get("numpy")
        self._torch: Any = sys.modules.get("torch")
        self._same: dict[tuple[Any, ...], str] = {}
        self._path: list[str] = []

    def encode(self, name: str, value: Any) -> Any:
        """The value of an entry called ``name``."""
        self._path = [name]
        return self._encode(value)

    def _encode(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ITSELF:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        known = self._by_type.get(kind)
        if known is not None:
            return known(self, value)
        torch, numpy = self._torch, self._numpy
        if torch is not None:
            if isinstance(value, torch.Tensor):
                return self._tensor(value)
            if kind is torch.Size:
                return {"size": list(value)}
            if kind is torch.dtype:
                return {"dtype": str(value).removeprefix("torch.")}
            if kind is torch.device:
                return {"device": str(value)}
        if numpy is not None:
            if kind is numpy.ndarray:
                return self._array(value)
            if isinstance(value, numpy.generic) and value.dtype.kind in "biufcmM":
                return {"scalar": [value.dtype.str, value.tobytes().hex()]}
        raise self._refused(value, f"lockstep cannot keep a {kind.__module__}.{kind.__qualname__}")

    def _refused(self, value: Any, why: str) -> TypeError:
        where = "".join(f"[{step}]" if n else step for n, step in enumerate(self._path))
        return TypeError(
            f"State: {where} is {_shown(value)}, and {why}: give an object with state_dict() and "
            "load_state_dict(), numbers, strings, tensors, arrays, or lists and dicts of these."
        )

    def _all(self, values: Iterable[Any]) -> list[Any]:
        values = list(values)
        if _ITSELF.issuperset(map(type, values)):
            return values
        return [self._below(str(index), inner) for index, inner in enumerate(values)]

    def _below(self, step: str, value: Any) -> Any:
        if len(self._path) > _DEPTH:
            raise self._refused(value, f"it is nested deeper than {_DEPTH} levels")
        self._path.append(step)
        node = self._encode(value)
        self._path.pop()
        return node

    def _dict(self, value: Mapping[Any, Any]) -> Any:
        if all(type(key) is str for key in value):
            return {"dict": {key: self._below(key, inner) for key, inner in value.items()}}
        return {"items": self._items(value)}

    def _items(self, value: Mapping[Any, Any]) -> list[Any]:
        return [
            [self._below(f"the key {key!r}", key), self._below(str(key), inner)]
            for key, inner in value.items()
        ]

    def _ordered(self, value: OrderedDict[Any, Any]) -> Any:
        # torch's state dicts have the versions of the modules' formats there.
        metadata = vars(value).get("_metadata")
        return {"OrderedDict": [self._items(value), metadata and self._encode(metadata)]}

    def _defaultdict(self, value: defaultdict[Any, Any]) -> Any:
        factory = value.default_factory
        name = getattr(factory, "__name__", None)
        if factory is not None and _FACTORIES.get(str(name)) is not factory:
            raise self._refused(value, "its default_factory is a function, which is not data")
        return {"defaultdict": [name, self._items(value)]}

    def _bytes(self, value: bytes | bytearray) -> Any:
        return {type(value).__name__: base64.b64encode(value).decode()}

    def _name(self) -> str:
        name = ".".join(self._path)
        # Keys may have dots themselves.
        while name in self.leaves:
            name += "_"
        return name

    def _leaf(self, source: Any, dtype: str, is_torch: bool, **more: Any) -> str:
        name = self._name()
        nbytes = int(source.nbytes)
        self.leaves[name] = Leaf(name, source, dtype, tuple(source.shape), nbytes, is_torch, **more)
        return name

    def _tensor(self, value: Any) -> Any:
        torch = self._torch
        value = value.detach()
        if hasattr(value, "full_tensor"):
            return self._shard(value)
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            kind = "meta" if value.is_meta else "quantized" if value.is_quantized else value.layout
            raise self._refused(
                value, f"a tensor of this kind ({kind}) has no plain bytes, make it dense"
            )
        same = None
        if value.numel():
            # Tied weights are written once.
            same = (value.data_ptr(), value.device, value.dtype, value.shape, value.stride())
            if same in self._same:
                return {"tensor": [self._same[same]]}
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype in _TORCH:
            name = self._leaf(value.resolve_neg(), _TORCH[dtype], True)
            node: dict[str, list[Any]] = {"tensor": [name]}
        else:
            plain = value.resolve_conj().resolve_neg().contiguous().reshape(-1)
            try:
                name = self._leaf(plain.view(torch.uint8), "U8", True)
            except RuntimeError:
                why = f"a tensor of {dtype} has no plain bytes"
                raise self._refused(value, why) from None
            node = {"tensor": [name, dtype, list(value.shape)]}
        if same is not None and len(node["tensor"]) == 1:
            self._same[same] = name
        return node

    def _shard(self, value: Any) -> Any:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        placements, mesh = value.placements, value.device_mesh
        if any(placement.is_partial() for placement in placements):
            raise self._refused(value, "a partial sum is not a value yet; reduce it first")
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in _TORCH:
            raise self._refused(value, f"a shard of {dtype} has no form in the file")
        shape = tuple(value.shape)
        _, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
        place = mesh.get_coordinate() or ()
        # Where it is replicated, the first of the ranks writes it.
        copy = any(at and not p.is_shard() for at, p in zip(place, placements, strict=False))
        local = value.to_local()
        chunk = (shape, tuple(offset))
        name = self._leaf(local, _TORCH[dtype], True, chunk=chunk, is_copy=copy)
        return {"shard": [name, dtype, list(shape)]}

    def _array(self, value: Any) -> Any:
        dtype = value.dtype.str
        if dtype in _NUMPY:
            return {"array": [self._leaf(value, _NUMPY[dtype], False)]}
        plain = value.dtype.kind in "biufcmMSU" and value.dtype.itemsize
        if not plain or self._numpy.dtype(dtype) != value.dtype:
            raise self._refused(value, f"an array of {value.dtype} has no plain bytes")
        flat = self._numpy.ascontiguousarray(value).reshape(-1).view(self._numpy.uint8)
        return {"array": [self._leaf(flat, "U8", False), dtype, list(value.shape)]}

    _by_type: Mapping[type, Callable[[TreeEncoder, Any], Any]] = {
        dict: _dict,
        list: lambda self, value: self._all(value),
        tuple: lambda self, value: {"tuple": self._all(value)},
        set: lambda self, value: {"set": self._all(value)},
        frozenset: lambda self, value: {"frozenset": self._all(value)},
        deque: lambda self, value: {"deque": [self._all(value), value.maxlen]},
        OrderedDict: _ordered,
        Counter: lambda self, value: {"Counter": self._items(value)},
        defaultdict: _defaultdict,
        complex: lambda self, value: {"complex": [repr(value.real), repr(value.imag)]},
        bytes: _bytes,
        bytearray: _bytes,
    }


class TreeDecoder:
    """The opposite of ``TreeEncoder``.

    Args:
        tensor, array: called with a leaf's name; return the tensor, or the array.
        shard: called with a shard's name, its element type and the complete shape.
    """

    def __init__(
        self,
        tensor: Callable[[str], Any],
        array: Callable[[str], Any],
        shard: Callable[[str, str, tuple[int, ...]], Any],
    ) -> None:
        self._get_tensor = tensor
        self._get_array = array
        self._get_shard = shard

    def decode(self, node: Any) -> Any:
        """The value of a node."""
        if type(node) is list:
            return [self.decode(inner) for inner in node]
        if type(node) is not dict:
            return node
        ((kind, parts),) = node.items()
        return self._by_kind[kind](self, parts)

    def _items(self, parts: list[Any]) -> dict[Any, Any]:
        return {self.decode(key): self.decode(inner) for key, inner in parts}

    def _ordered(self, parts: list[Any]) -> OrderedDict[Any, Any]:
        found = OrderedDict(self._items(parts[0]))
        metadata = self.decode(parts[1])
        if metadata is not None:
            vars(found)["_metadata"] = metadata
        return found

    def _defaultdict(self, parts: list[Any]) -> Any:
        return defaultdict(parts[0] and _FACTORIES[parts[0]], self._items(parts[1]))

    def _tensor(self, parts: list[Any]) -> Any:
        found = self._get_tensor(parts[0])
        if len(parts) == 1:
            return found
        dtype = torch_dtype(parts[1])
        if found.data_ptr() % dtype.itemsize or found.storage_offset() % dtype.itemsize:
            found = found.clone()  # bytes may begin anywhere in a file
        return found.view(dtype).reshape(parts[2])

    def _array(self, parts: list[Any]) -> Any:
        found = self._get_array(parts[0])
        if len(parts) == 1:
            return found
        import numpy as np

        return found.view(_plain_dtype(np, parts[1])).reshape(parts[2])

    def _scalar(self, parts: list[Any]) -> Any:
        import numpy as np

        return np.frombuffer(bytes.fromhex(parts[1]), _plain_dtype(np, parts[0]))[0]

    def _size(self, parts: list[int]) -> Any:
        import torch

        return torch.Size(parts)

    def _device(self, name: str) -> Any:
        import torch

        return torch.device(name)

    _by_kind: Mapping[str, Callable[[TreeDecoder, Any], Any]] = {
        "array": _array,
        "bytearray": lambda self, parts: bytearray(base64.b64decode(parts)),
        "bytes": lambda self, parts: base64.b64decode(parts),
        "complex": lambda self, parts: complex(float(parts[0]), float(parts[1])),
        "Counter": lambda self, parts: Counter(self._items(parts)),
        "defaultdict": _defaultdict,
        "deque": lambda self, parts: deque(self.decode(parts[0]), parts[1]),
        "device": _device,
        "dict": lambda self, parts: {key: self.decode(inner) for key, inner in parts.items()},
        "dtype": lambda self, parts: torch_dtype(parts),
        "float": lambda self, parts: float(parts),
        "frozenset": lambda self, parts: frozenset(self.decode(parts)),
        "items": _items,
        "OrderedDict": _ordered,
        "scalar": _scalar,
        "set": lambda self, parts: set(self.decode(parts)),
        "shard": lambda self, parts: self._get_shard(parts[0], parts[1], tuple(parts[2])),
        "size": _size,
        "tensor": _tensor,
        "tuple": lambda self, parts: tuple(self.decode(parts)),
    }


def torch_dtype(name: str) -> Any:
    """torch's type of elements, by its name there or in the file."""
    import torch

    # The name comes from a file: anything else in torch must not be used.
    found = getattr(torch, _TORCH_BACK.get(name, name), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is not a type of a tensor's elements")
    return found


def numpy_dtype(name: str) -> str | None:
    """numpy's name of a type of elements in the file; None if numpy has no such type."""
    return _NUMPY_BACK.get(name)


def _plain_dtype(np: Any, name: str) -> Any:
    dtype = np.dtype(name)
    if dtype.kind not in "biufcmMSU":
        raise ValueError(f"{name!r} is not a type of an array's elements")
    return dtype


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
