"""The training function and its config: what a function takes, and what it is given."""

from __future__ import annotations

import inspect
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.train.function.serialize import dump

__all__ = ["config_like", "takes_config"]


def takes_config(function: Callable[..., Any], may_yield: bool = False) -> bool:
    """Whether the training function wants the config dict: it has one argument, of any name.

    Of several optional arguments, the first gets it if it is called ``config``.

    Args:
        function: the training function.
        may_yield: whether it may be a generator function.

    Raises:
        TypeError: calling it would only make a coroutine or a generator.
        ValueError: it takes more than one argument.
    """
    name = getattr(function, "__name__", repr(function))
    for called in (function, type(function).__call__):
        if inspect.iscoroutinefunction(called):
            raise TypeError(
                f"{name} is a coroutine function; give a plain function, which may call "
                "asyncio.run()."
            )
        yields = inspect.isgeneratorfunction(called) and not may_yield
        if yields or inspect.isasyncgenfunction(called):
            raise TypeError(
                f"{name} is a generator function; give a plain function, which calls "
                "train.report() where this one yields."
            )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    positional = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    optional = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is not p.empty
    ]
    required = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(positional) > 1 or required:
        wanted = ", ".join(p.name for p in (*positional, *required))
        raise ValueError(
            f"{name}({wanted}): a training function takes no argument or one, the config dict; "
            "bind the others with functools.partial or put them into train_loop_config."
        )
    return bool(positional) or (
        bool(optional) and (len(optional) == 1 or optional[0].name == "config")
    )


def config_like(original: Mapping[str, Any], items: Mapping[str, Any]) -> dict[str, Any]:
    """A config with these items, of the class of ``original`` where such an object can be made.

    A function may read ``config.lr`` of a dict class with attributes. The object is created from
    its items, not copied: whatever else it holds (attributes, a lock) belongs to other items.
    A plain dict otherwise.
    """
    plain = dict(items)
    if type(original) is dict or not isinstance(original, (dict, UserDict)):
        return plain
    try:
        dump(type(original)(), "train_loop_config")
        made: dict[str, Any] = type(original)(plain)  # type: ignore[assignment]  # a user's class
        return made if dict(made) == plain else plain
    except Exception:
        return plain
