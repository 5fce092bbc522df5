"""Deep comparison of metrics and checkpoints. Nothing here runs a training."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from numbers import Real
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from lockstep.checkpoint import Checkpoint
from lockstep.errors import CheckpointError

__all__ = ["ABSENT", "Comparison", "Mismatch"]

_ADDED_BY_STORING = ("_timestamp", "_preprocessor", "_current_checkpoint_id")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_TIME = re.compile(
    r"(^|_)(date|datetime|duration|elapsed|fps|latency|ms|per_second|runtime|secs?|seconds"
    r"|throughput|time(?!_steps?(_|$))|timestamp|uptime|walltime)(_|$)|_s$"
)
_PLACES = frozenset(("logging_dir", "output_dir"))
"""Directories of a run of its own: two runs have two. TensorBoard's has the date in its name."""
_TORCH_FILES = (b"PK", b"\x80")


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()
"""Represents a value that exists on the other side only."""


class Mismatch(NamedTuple):
    """One place where two values differ: its path, and the value on each side."""

    path: str
    expected: Any
    got: Any


class Comparison:
    """Decides which values are equal.

    Args:
        tolerance: how far two floats may differ, absolutely or relative to the larger one.
            Integers must be equal.
        ignore: names that are not compared, wherever they occur; ``"a/b"`` names one place.
            Names of times and speeds are never compared, and of absolute paths only the last part
            is: two runs have two directories.
    """

    def __init__(self, tolerance: float, ignore: Collection[str]) -> None:
        self._tolerance = tolerance
        self._ignore = frozenset(ignore)

    def considers(self, path: str, name: str, *values: Any) -> bool:
        """Whether values of this name, at this path, are compared."""
        return not self._ignored(path) and not _is_time(name, *values) and name not in _PLACES

    def checkpoints(self, expected: Checkpoint, got: Checkpoint) -> Iterator[Mismatch]:
        """Yield where two checkpoints differ: by entry if both are dicts, otherwise by file."""
        if (expected.is_dict and got.is_dict) or (expected.is_state and got.is_state):
            # If a class in a dict cannot be imported here, the checkpoints' files are compared.
            with suppress(CheckpointError):
                dicts = (expected.to_dict(), got.to_dict())
                for data in dicts:
                    for key in _ADDED_BY_STORING:
                        data.pop(key, None)
                    if expected.is_state:
                        # Of generators that nobody seeded, two runs have different states.
                        data.pop("rng", None)
                yield from self.values(*dicts)
                return
        with ExitStack() as stack:
            left, right = (Path(stack.enter_context(c.as_directory())) for c in (expected, got))
            here, there = expected.files(), got.files()
            for name in sorted({*here, *there}):
                if self._ignored(name):
                    continue
                if name not in here or name not in there:
                    one, other = (
                        f"a file of {side[name]} bytes" if name in side else ABSENT
                        for side in (here, there)
                    )
                    yield Mismatch(name, one, other)
                else:
                    yield from self._files(left / name, right / name, name)

    def _files(self, expected: Path, got: Path, name: str) -> Iterator[Mismatch]:
        at = _first_different_byte(expected, got)
        if at is None:
            return
        one, other = _load(expected), _load(got)
        if one is ABSENT or other is ABSENT:
            sizes = (f"a file of {path.stat().st_size} bytes" for path in (expected, got))
            yield Mismatch(f"{name} at byte {at}", *sizes)
        else:
            yield from self.values(one, other, name)

    def values(
        self, expected: Any, got: Any, path: str = "", above: frozenset[int] = frozenset()
    ) -> Iterator[Mismatch]:
        """Yield where two values differ, depth first.

        ``above`` has the ids of the containers that these values are in: a container inside itself
        is compared once.
        """
        if expected is got or id(expected) in above:
            return
        inside = above | {id(expected)}
        if isinstance(expected, Mapping) and isinstance(got, Mapping):
            for key in dict.fromkeys((*expected, *got)):
                one, other = expected.get(key, ABSENT), got.get(key, ABSENT)
                place = f"{path}/{key}" if path else str(key)
                if self.considers(place, str(key), one, other):
                    yield from self.values(one, other, place, inside)
        elif isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)):
            if len(expected) != len(got):
                yield Mismatch(f"the length of {path}", len(expected), len(got))
            else:
                for index, (one, other) in enumerate(zip(expected, got, strict=True)):
                    yield from self.values(one, other, f"{path}[{index}]", inside)
        elif _is_array(expected) and _is_array(got):
            yield from self._arrays(expected, got, path)
        elif _is_dataclass(expected) and type(expected) is type(got):
            yield from self.values(_fields(expected), _fields(got), path, inside)
        elif type(expected) is type(got) and (state := _inner_state(expected)) is not ABSENT:
            # The parts of an object have no name, so the path stays the same.
            states = (state, _inner_state(got))
            parts = [states] if isinstance(state, Mapping) else itertools.zip_longest(*states)
            for one, other in parts:
                yield from self.values(one, other, path, inside)
        elif not self._same(expected, got):
            yield Mismatch(path, expected, got)

    def _arrays(self, expected: Any, got: Any, path: str) -> Iterator[Mismatch]:
        import numpy as np

        one, other = _as_numpy(expected), _as_numpy(got)
        if one.shape != other.shape:
            yield Mismatch(f"the shape of {path}", one.shape, other.shape)
            return
        if str(expected.dtype) != str(got.dtype):
            yield Mismatch(f"the dtype of {path}", str(expected.dtype), str(got.dtype))
            return
        if one.dtype.kind in "fc":
            close = np.isclose(other, one, self._tolerance, self._tolerance, equal_nan=True)
            if close.all():
                return
            with np.errstate(invalid="ignore"):
                apart = np.where(close, 0, np.nan_to_num(np.abs(other - one), nan=np.inf))
        else:
            apart = one != other
            if not apart.any():
                return
        worst = np.unravel_index(int(np.argmax(apart)), one.shape)
        place = f"{path}[{', '.join(map(str, worst))}]" if worst else path
        yield Mismatch(place, one[worst].item(), other[worst].item())

    def _same(self, expected: Any, got: Any) -> bool:
        if isinstance(expected, Real) and isinstance(got, Real):
            if isinstance(expected, float) or isinstance(got, float):
                one, other, limit = float(expected), float(got), self._tolerance
                close = math.isclose(one, other, rel_tol=limit, abs_tol=limit)
                return close or (math.isnan(one) and math.isnan(other))
            return type(expected) is type(got) and bool(expected == got)
        if _is_path(expected) and _is_path(got):
            return PurePath(expected).name == PurePath(got).name
        try:
            return bool(expected == got)
        except Exception:  # data frames and the like, which compare element by element
            return pickle.dumps(expected) == pickle.dumps(got)

    def _ignored(self, path: str) -> bool:
        return path in self._ignore or not self._ignore.isdisjoint(path.split("/"))


def _is_time(name: str, *values: Any) -> bool:
    """Whether the name is that of a time or a speed, which differs in every run."""
    if not all(isinstance(value, (Real, str)) or value is ABSENT for value in values):
        return False
    return bool(_TIME.search("_".join(_WORDS.findall(name)).lower()))


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and (
        _is_tensor(value) or type(value).__module__.partition(".")[0] == "numpy"
    )


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "is_floating_point")


def _as_numpy(value: Any) -> Any:
    import numpy as np

    if _is_tensor(value):
        value = value.detach().cpu()
        if str(value.layout) != "torch.strided":
            value = value.to_dense()
        # numpy has no bfloat16; every smaller float fits into a double.
        value = value.double() if value.is_floating_point() else value
        value = value.resolve_conj().resolve_neg().numpy()
    return np.asarray(value)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, PurePath)) and str(value).startswith("/")


def _is_dataclass(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> dict[str, Any]:
    return {
        field.name: getattr(value, field.name, ABSENT) for field in fields(value) if field.compare
    }


def _inner_state(value: Any) -> Any:
    """The state of an object whose class defines no ``__eq__``; ABSENT if it has no state."""
    if callable(getattr(value, "state_dict", None)):
        return value.state_dict()
    if getattr(type(value), "__eq__", None) is not object.__eq__:
        return ABSENT
    try:
        parts = value.__reduce_ex__(4)
    except Exception:
        return ABSENT
    if not isinstance(parts, tuple):
        return ABSENT  # a function or class, which is pickled by name
    # A factory, its arguments and the state; then iterators over list and dict items.
    return [list(part) if isinstance(part, Iterator) else part for part in parts]


def _load(path: Path) -> Any:
    """What a file holds, by its kind; ABSENT if that cannot be read here."""
    with suppress(ValueError, ImportError):
        if path.suffix == ".json":
            return json.loads(path.read_bytes())
        if path.suffix == ".safetensors":
            return import_module("safetensors.torch").load(path.read_bytes())
    return _load_with_torch(path)


def _load_with_torch(path: Path) -> Any:
    """Load a file that ``torch.save`` wrote; ABSENT if it is another file."""
    with path.open("rb") as file:
        if not file.read(2).startswith(_TORCH_FILES):
            return ABSENT
    try:
        import torch
    except ImportError:
        return ABSENT
    for weights_only in (True, False):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.load(path, map_location="cpu", weights_only=weights_only)
        except Exception:
            continue
    return ABSENT


def _first_different_byte(one: Path, other: Path) -> int | None:
    size = 1 << 20
    with one.open("rb") as left, other.open("rb") as right:
        at = 0
        while True:
            a, b = left.read(size), right.read(size)
            if a != b:
                common = min(len(a), len(b))
                return at + next((i for i in range(common) if a[i] != b[i]), common)
            if not a:
                return None
            at += len(a)
