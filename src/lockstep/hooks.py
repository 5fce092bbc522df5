"""Calling hooks that users implement: with the arguments that an implementation takes.

A user's searcher, scheduler or callback may have been written for another version of the API: with
``**kwargs`` for what it does not use, without an argument that was added later, or with other
names. It is called with what its signature takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

__all__ = ["call_hook"]

T = TypeVar("T")


class _Call(NamedTuple):
    """How a function is called."""

    by_position: tuple[str, ...]
    by_name: tuple[str, ...]


def call_hook(function: Callable[..., T], /, **arguments: Any) -> T:
    """Call a user's implementation of a hook, and return what it returns.

    An argument is passed by its name. A parameter with a name that the hook does not have gets the
    argument at its position. Arguments that the function does not take are left out.

    Args:
        function: the implementation.
        arguments: all that the hook is documented to get, in the documented order.
    """
    plain = getattr(function, "__func__", function)
    try:
        call = _plan(plain, plain is not function, tuple(arguments))
    except TypeError:  # a callable object that cannot be hashed
        call = _plan.__wrapped__(plain, plain is not function, tuple(arguments))
    if call is None:
        return function(**arguments)
    positional = [arguments[name] for name in call.by_position]
    return function(*positional, **{name: arguments[name] for name in call.by_name})


@lru_cache(maxsize=1024)
def _plan(function: Callable[..., Any], bound: bool, names: tuple[str, ...]) -> _Call | None:
    """How to call a function; None: with every argument by its name."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[bound:]
    except (TypeError, ValueError):  # a builtin without a signature
        return _Call(names, ())
    kinds = {parameter.kind for parameter in parameters}
    takes_more = inspect.Parameter.VAR_KEYWORD in kinds
    if inspect.Parameter.VAR_POSITIONAL in kinds and not takes_more:
        return _Call(names, ())
    ordered = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = {parameter.name for parameter in parameters}
    count = 0
    for place, (name, parameter) in enumerate(zip(names, ordered, strict=False), start=1):
        # A default of its own stays, where the argument has another way into the function.
        needed = parameter.default is parameter.empty or not (takes_more or name in taken)
        own_name = parameter.name not in names and needed
        if own_name or parameter.kind is parameter.POSITIONAL_ONLY:
            count = place
    by_position, rest = names[:count], names[count:]
    if not takes_more:
        taken = {p.name for p in parameters[count:]}
        rest = tuple(name for name in rest if name in taken)
    return None if rest == names else _Call(by_position, rest)
