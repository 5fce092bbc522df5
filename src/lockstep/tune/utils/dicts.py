"""Merging, flattening and looking up in nested dicts."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from lockstep.metrics import flatten

__all__ = [
    "deep_update",
    "flatten_dict",
    "merge_dicts",
    "unflatten_dict",
    "unflatten_list_dict",
    "unflattened_lookup",
]


def flatten_dict(
    dt: Mapping[str, Any],
    delimiter: str = "/",
    prevent_delimiter: bool = False,
    flatten_list: bool = False,
) -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a/b": 1}``; with ``flatten_list`` also ``{"a": [1]}`` as ``a/0``.

    An empty dict or list stays a value.

    Raises:
        ValueError: ``prevent_delimiter``, and a key contains the delimiter.
    """
    if prevent_delimiter:
        _check_keys(dt, delimiter)
    return flatten(_lists_as_dicts(dt) if flatten_list else dt, delimiter=delimiter)


def _lists_as_dicts(value: Any) -> Any:
    if isinstance(value, list) and value:
        value = {str(index): inner for index, inner in enumerate(value)}
    if not isinstance(value, Mapping):
        return value
    return {key: _lists_as_dicts(inner) for key, inner in value.items()}


def unflatten_dict(dt: Mapping[str, Any], delimiter: str = "/") -> dict[str, Any]:
    """``{"a/b": 1}`` as ``{"a": {"b": 1}}``."""
    nested: dict[str, Any] = {}
    for name, value in dt.items():
        *parents, last = name.split(delimiter)
        inside = nested
        for parent in parents:
            inside = inside.setdefault(parent, {})
            if not isinstance(inside, dict):
                raise TypeError(
                    f"unflatten_dict: {name!r} is below {parent!r}, which has a value of its own."
                )
        inside[last] = value
    return nested


def unflatten_list_dict(dt: Mapping[str, Any], delimiter: str = "/") -> Any:
    """``{"a/0": 1, "a/1": 2}`` as ``{"a": [1, 2]}``: dicts whose keys count from 0 are lists."""
    return _with_lists(unflatten_dict(dt, delimiter))


def unflattened_lookup(
    flat_key: str, lookup: Mapping[str, Any] | Sequence[Any], delimiter: str = "/", **kwargs: Any
) -> Any:
    """The value at ``"a/b"`` of nested dicts and lists.

    Raises:
        KeyError, IndexError: there is none, and no ``default=`` is given.
    """
    if flat_key in lookup and isinstance(lookup, Mapping):
        return lookup[flat_key]
    found: Any = lookup
    try:
        for key in flat_key.split(delimiter):
            found = found[key] if isinstance(found, Mapping) else found[int(key)]
    except (KeyError, IndexError, TypeError, ValueError):
        if "default" in kwargs:
            return kwargs["default"]
        raise
    return found


def merge_dicts(d1: Mapping[str, Any], d2: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``d1`` with ``d2`` merged over it, dict by dict."""
    merged = copy.deepcopy(dict(d1))
    deep_update(merged, d2, new_keys_allowed=True)
    return merged


def deep_update(
    original: MutableMapping[str, Any],
    new_dict: Mapping[str, Any],
    new_keys_allowed: bool = False,
    allow_new_subkey_list: Sequence[str] | None = None,
    override_all_if_type_changes: Sequence[str] | None = None,
    override_all_key_list: Sequence[str] | None = None,
) -> MutableMapping[str, Any]:
    """Merge ``new_dict`` into ``original``, in place, and return it.

    Args:
        original: the dict to change.
        new_dict: what to merge into it.
        new_keys_allowed: whether keys may be new.
        allow_new_subkey_list: keys of the top level below which keys may be new.
        override_all_if_type_changes: keys of the top level whose dict is replaced, not merged,
            where its ``"type"`` is another.
        override_all_key_list: keys of the top level whose dict is replaced, not merged.

    Raises:
        KeyError: a key is new, and must not be.
    """
    for key, value in new_dict.items():
        if key not in original and not new_keys_allowed:
            raise KeyError(f"deep_update: {key!r} is not among {', '.join(map(repr, original))}.")
        below = original.get(key)
        retyped = (
            key in (override_all_if_type_changes or ())
            and isinstance(value, Mapping)
            and isinstance(below, Mapping)
            and "type" in value
            and value["type"] != below.get("type")
        )
        replaced = retyped or key in (override_all_key_list or ())
        if isinstance(below, MutableMapping) and isinstance(value, Mapping) and not replaced:
            deep_update(below, value, new_keys_allowed or key in (allow_new_subkey_list or ()))
        else:
            original[key] = value
    return original


def _check_keys(node: Mapping[str, Any], delimiter: str) -> None:
    for key, value in node.items():
        if isinstance(key, str) and delimiter in key:
            raise ValueError(f"flatten_dict: the key {key!r} contains {delimiter!r}.")
        if isinstance(value, Mapping):
            _check_keys(value, delimiter)


def _with_lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    values = {key: _with_lists(value) for key, value in node.items()}
    if values and list(values) == [str(index) for index in range(len(values))]:
        return list(values.values())
    return values
