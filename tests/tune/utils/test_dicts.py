"""The helpers for nested dicts."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.tune import utils
from lockstep.tune.utils.util import is_nan, is_nan_or_inf, unflatten_list_dict


def test_flat_and_nested() -> None:
    nested = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    flat = utils.flatten_dict(nested)
    assert flat == {"a/b": 1, "a/c/d": 2, "e": 3}
    assert utils.unflatten_dict(flat) == nested
    assert utils.unflatten_dict({"a.b": 1}, delimiter=".") == {"a": {"b": 1}}
    assert unflatten_list_dict({"a/0": 1, "a/1/b": 2, "c": 3}) == {"a": [1, {"b": 2}], "c": 3}
    lists: dict[str, Any] = {"a": [], "b": [1, {"c": []}], "d": {}}
    flat = utils.flatten_dict(lists, flatten_list=True)
    assert flat == {"a": [], "b/0": 1, "b/1/c": [], "d": {}}
    with pytest.raises(ValueError, match="'x/y' contains '/'"):
        utils.flatten_dict({"a": {"x/y": 1}}, prevent_delimiter=True)
    with pytest.raises(TypeError, match="below 'a'"):
        utils.unflatten_dict({"a": 1, "a/b": 2})


def test_looking_up() -> None:
    nested: dict[str, Any] = {"a": {"b": [1, 2]}, "x/y": 3}
    assert utils.unflattened_lookup("a/b/1", nested) == 2
    assert utils.unflattened_lookup("x/y", nested) == 3
    assert utils.unflattened_lookup("a/none", nested, default=7) == 7
    with pytest.raises(KeyError):
        utils.unflattened_lookup("a/none", nested)


def test_merging() -> None:
    first = {"a": {"b": 1}, "c": 2}
    assert utils.merge_dicts(first, {"a": {"d": 3}}) == {"a": {"b": 1, "d": 3}, "c": 2}
    assert first == {"a": {"b": 1}, "c": 2}
    with pytest.raises(KeyError, match="'new' is not among"):
        utils.deep_update({"a": 1}, {"new": 2})
    assert utils.deep_update({"a": {"b": 1}}, {"a": {"c": 2}}, False, ["a"]) == {
        "a": {"b": 1, "c": 2}
    }
    typed: dict[str, Any] = {"a": {"type": 1, "b": 2}}
    changed = utils.deep_update(typed, {"a": {"type": 2}}, False, None, ["a"])
    assert changed == {"a": {"type": 2}}
    replaced = utils.deep_update(
        {"a": {"b": 1}}, {"a": {"c": 2}}, True, override_all_key_list=["a"]
    )
    assert replaced == {"a": {"c": 2}}


def test_numbers_and_dates() -> None:
    assert is_nan(float("nan"))
    assert not is_nan("text")
    assert is_nan_or_inf(float("inf"))
    assert not is_nan_or_inf(1)
    assert len(utils.date_str()) == len("2026-11-16_05-10-00")
