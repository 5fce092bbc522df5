"""Hooks that users implement are called with what their signatures take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from lockstep.hooks import call_hook

Seen = tuple[tuple[Any, ...], dict[str, Any]]


def documented(trial_id: str, result: Any = None, error: bool = False) -> Seen:
    return (), {"trial_id": trial_id, "result": result, "error": error}


def rest_by_name(trial_id: str, result: Any, **kwargs: Any) -> Seen:
    return (trial_id, result), kwargs


def fewer(trial_id: str) -> Seen:
    return (trial_id,), {}


def nothing() -> Seen:
    return (), {}


def other_names(a: str, b: Any, c: bool) -> Seen:
    return (a, b, c), {}


def one_other_name(own: str, error: bool) -> Seen:
    return (own,), {"error": error}


def by_position(trial_id: str, result: Any, error: bool, /) -> Seen:
    return (trial_id, result, error), {}


def by_name(*, error: bool, trial_id: str) -> Seen:
    return (), {"error": error, "trial_id": trial_id}


def all_by_position(*args: Any) -> Seen:
    return args, {}


def anything(*args: Any, **kwargs: Any) -> Seen:
    return args, kwargs


def own_default(trial_id: str, mine: int = 7, **kwargs: Any) -> Seen:
    return (trial_id, mine), kwargs


def other_names_with_defaults(trial_id: str, res: Any = None, failed: bool = False) -> Seen:
    return (trial_id, res, failed), {}


def own_default_between(trial_id: str, mine: int = 7, result: Any = None) -> Seen:
    return (trial_id, mine, result), {}


@wraps(rest_by_name)
def wrapped(*args: Any, **kwargs: Any) -> Seen:
    return rest_by_name(*args, **kwargs)


EVERYTHING = {"trial_id": "t", "result": 1, "error": True}


@pytest.mark.parametrize(
    ("function", "seen"),
    [
        (documented, ((), EVERYTHING)),
        (rest_by_name, (("t", 1), {"error": True})),
        (wrapped, (("t", 1), {"error": True})),
        (fewer, (("t",), {})),
        (nothing, ((), {})),
        (other_names, (("t", 1, True), {})),
        (one_other_name, (("t",), {"error": True})),
        (by_position, (("t", 1, True), {})),
        (by_name, ((), {"error": True, "trial_id": "t"})),
        (all_by_position, (("t", 1, True), {})),
        (anything, ((), EVERYTHING)),
        (own_default, (("t", 7), {"result": 1, "error": True})),
        (other_names_with_defaults, (("t", 1, True), {})),
        (own_default_between, (("t", 7, 1), {})),
        (partial(other_names, c=False), (("t", 1, False), {})),
    ],
)
def test_a_function_gets_what_it_takes(function: Callable[..., Seen], seen: Seen) -> None:
    for _ in range(2):
        assert call_hook(function, **EVERYTHING) == seen


def test_methods_of_each_kind() -> None:
    class Hooks:
        __hash__ = None  # type: ignore[assignment]

        def method(self, trial_id: str, error: bool) -> Any:
            return trial_id, error

        @classmethod
        def of_class(cls, own: str, result: Any) -> Any:
            return own, result

        @staticmethod
        def static(trial_id: str) -> Any:
            return trial_id

        def __call__(self, result: Any) -> Any:
            return result

    hooks = Hooks()
    assert call_hook(hooks.method, **EVERYTHING) == ("t", True)
    assert call_hook(hooks.of_class, **EVERYTHING) == ("t", 1)
    assert call_hook(hooks.static, **EVERYTHING) == "t"
    assert call_hook(hooks, **EVERYTHING) == 1


def test_an_error_of_the_hook_is_its_own() -> None:
    def wrong(trial_id: str, **kwargs: Any) -> None:
        len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"object of type 'int' has no len"):
        call_hook(wrong, **EVERYTHING)
    with pytest.raises(TypeError, match="four"):
        call_hook(lambda a, b, c, four: None, **EVERYTHING)
