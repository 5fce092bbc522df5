"""Loads what was pickled for a worker; if that fails, names the variable that does not load."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, CellType, FunctionType
from typing import Any

__all__ = ["load", "load_function"]


def load(data: bytes, name: str) -> Any:
    """The value of ``serialize.dump``.

    Raises:
        TypeError: it does not load here; says what of it, and why.
    """
    try:
        return pickle.loads(data)
    except Exception as error:
        raise TypeError(f"{_reason(name + _place(_held(data)[1:]), error)}.") from error


def load_function(data: bytes) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function and the config of ``serialize.dump_function``.

    Raises:
        TypeError: something in them does not load here; names the variable.
        Exception: the function's own module cannot be imported here; its own error.
    """
    try:
        function, config = pickle.loads(data)
    except Exception as error:
        variable = _variable(_held(data))
        if variable is None:
            raise
        raise TypeError(
            f"{_reason(variable, error)}; create or import it inside the training function "
            "instead of capturing it."
        ) from error
    return function, config


def _reason(what: str, error: Exception) -> str:
    return f"{what} cannot be loaded in a worker ({type(error).__name__}: {error})"


def _held(data: bytes) -> list[Any]:
    """What an unpickler holds when it fails: complete objects, and the parts of incomplete ones.

    Before each value of a dict stands its key.
    """
    # The implementation in Python, not the one in C: only its stack can be read after an error.
    unpickler: Any = pickle._Unpickler(io.BytesIO(data))
    try:
        unpickler.load()
    except Exception:
        return [item for level in (*unpickler.metastack, unpickler.stack) for item in level]
    return []


def _variable(held: Sequence[Any]) -> str | None:
    """What does not load of a function and its config; None: the function itself."""
    if _is_config(held):
        return f"train_loop_config{_place(held[2:])}"
    setters = [index for index, item in enumerate(held) if _is_setter(item)]
    # No function was being made when loading failed.
    if not setters or len(held) < setters[-1] + 4:
        keys = _keys(held[2:])  # of an object that is called instead of a function
        return f"attribute {keys[0]!r} of the training function" if keys else None
    # cloudpickle's way of making a function: the function, two dicts, then its attributes.
    function = held[setters[-1] + 1]
    name = str(getattr(function, "__qualname__", "the training function"))
    used_by = f"used by {name.rpartition('<locals>.')[2]},"
    rest = held[setters[-1] + 4 :]
    names = [key if type(key) is str else "" for key in rest]
    found = [index for index in range(0, len(rest), 2) if names[index] in _ATTRIBUTES]
    if not found:
        return f"something {used_by}"
    attribute, after = rest[found[-1]], rest[found[-1] + 1 :]
    if attribute == "__globals__":
        keys = _keys(after[1:])
        return f"global variable {keys[0]!r}, {used_by}" if keys else f"a variable {used_by}"
    if attribute == "__closure__":
        done = sum(isinstance(item, CellType) for item in after)
        free = function.__code__.co_freevars[done:]
        return f"variable {free[0]!r}, {used_by}" if free else f"a variable {used_by}"
    if attribute == "_cloudpickle_submodules":
        return f"a module {used_by}"
    return f"a default argument of {name}"


_ATTRIBUTES = (
    "__kwdefaults__",
    "__defaults__",
    "__closure__",
    "_cloudpickle_submodules",
    "__globals__",
)


def _is_config(held: Sequence[Any]) -> bool:
    """Whether the function is complete, so that the config after it does not load."""
    if len(held) < 2 or _is_setter(held[1]):
        return False
    # An object that is called instead of a function gets its attributes last.
    function = held[0]
    return isinstance(function, (FunctionType, BuiltinFunctionType)) or bool(
        getattr(function, "__dict__", None)
    )


def _is_setter(item: Any) -> bool:
    return isinstance(item, FunctionType) and item.__name__ == "_function_setstate"


def _place(rest: Sequence[Any]) -> str:
    return "".join(f"[{key!r}]" for key in _keys(rest))


def _keys(rest: Sequence[Any]) -> list[str]:
    """The keys that lead to the value that is incomplete."""
    keys: list[str] = []
    index = 0
    while index < len(rest) and isinstance(rest[index], str):
        value = rest[index + 1] if index + 1 < len(rest) else None
        following = rest[index + 2] if index + 2 < len(rest) else None
        is_open = type(value) is dict and not value  # a complete one has its items
        if is_open or not isinstance(following, str):
            keys.append(rest[index])
        if not is_open and not isinstance(following, str):
            break
        index += 2
    return keys
