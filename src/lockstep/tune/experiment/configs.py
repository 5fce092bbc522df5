"""Configs as JSON for the journal, and back.

A value that JSON cannot hold (a class, an activation function, a ``ScalingConfig``) is encoded as
its position among the values of the ``param_space``, which is pickled in a file of its own. So the
journal never contains user code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.redact import redacted
from lockstep.tune.search.sample import Categorical
from lockstep.tune.search.space import is_grid

__all__ = ["decode_config", "encode_config"]

_PLAIN = frozenset((str, int, float, bool, type(None)))
_POSITION, _TUPLE, _ITEMS, _TEXT = "$value", "$tuple", "$items", "$repr"


def encode_config(config: Any, space: Any) -> Any:
    """``config`` as plain JSON; ``space`` is the space it was drawn from.

    URIs are without their secrets.
    """
    if type(config) in _PLAIN:
        return redacted(config)
    if isinstance(config, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in config):
            return {key: encode_config(value, _below(space, key)) for key, value in config.items()}
        items = [
            [encode_config(key, ()), encode_config(value, _below(space, key))]
            for key, value in config.items()
        ]
        return {_ITEMS: items}
    if type(config) in (list, tuple):
        values = [encode_config(value, _below(space, i)) for i, value in enumerate(config)]
        return values if type(config) is list else {_TUPLE: values}
    for position, value in enumerate(_values(space)):
        if value is config or _equal(value, config):
            return {_POSITION: position}
    if type(config).__module__ == "numpy" and hasattr(config, "tolist"):
        return encode_config(config.tolist(), space)
    return {_TEXT: repr(config)}


def decode_config(encoded: Any, space: Any, name: str = "") -> Any:
    """The config that ``encode_config`` was given.

    Raises:
        ValueError: a value could not be encoded, or is not in ``space`` any more; names it.
    """
    if isinstance(encoded, list):
        return [decode_config(v, _below(space, i), f"{name}/{i}") for i, v in enumerate(encoded)]
    if not isinstance(encoded, dict):
        return encoded
    if _TUPLE in encoded:
        return tuple(decode_config(encoded[_TUPLE], space, name))
    if _ITEMS in encoded:
        pairs = [(decode_config(key, (), name), value) for key, value in encoded[_ITEMS]]
        return {k: decode_config(v, _below(space, k), f"{name}/{k}") for k, v in pairs}
    if _POSITION in encoded:
        for position, value in enumerate(_values(space)):
            if position == encoded[_POSITION]:
                return value
    if _POSITION in encoded or _TEXT in encoded:
        raise ValueError(
            f"the value of {name.lstrip('/')!r} cannot be restored: "
            f"{encoded.get(_TEXT, 'it is not in param_space any more')}"
        )
    return {k: decode_config(v, _below(space, k), f"{name}/{k}") for k, v in encoded.items()}


def _below(space: Any, key: Any) -> Any:
    """The part of the space that a key of the config is from; of a choice, the complete choice."""
    if is_grid(space) or isinstance(space, Categorical):
        return space
    try:
        return space[key]
    except (KeyError, IndexError, TypeError):
        return space


def _values(space: Any) -> Iterator[Any]:
    """Every value in a part of a space, in a fixed order."""
    if is_grid(space):
        space = space["grid_search"]
    elif isinstance(space, Categorical):
        space = space.categories
    if type(space) is dict:
        space = list(space.values())
    if type(space) in (list, tuple):
        for part in space:
            yield from _values(part)
    else:
        yield space


def _equal(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # an array, for example, compares element by element
        return False
