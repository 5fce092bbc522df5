"""What an experiment searches, as text in its journal: a restore has to search the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.redact import redact
from lockstep.tune.search.sample import Categorical, Domain, Float, Function, Integer, Normal
from lockstep.tune.search.space import has_unresolved, is_grid

__all__ = ["changed_constants", "check_same_space", "check_same_trainable", "describe_space"]

_PLAIN = (str, int, float, bool, type(None))
_MAX_TEXT = 200
"""How much of a value is compared, in characters."""
_SHOWN = 3
"""How many differences a message names."""


def describe_space(space: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """``"searched"`` and ``"constants"``: the path of each value in a space → the value."""
    parts: dict[str, dict[str, str]] = {"searched": {}, "constants": {}}
    for path, node in _leaves(space, ""):
        # Only text is compared, so an experiment can be checked without loading any user code.
        text = redact(_text(node))[:_MAX_TEXT]
        parts["searched" if has_unresolved(node) else "constants"][path] = text
    return parts


def check_same_trainable(caller: str, past: Mapping[str, Any], kind: str, name: str) -> None:
    """Raise unless the experiment ran a trainable of this kind and name.

    Raises:
        ValueError: says what the experiment ran.
    """
    if (past["trainable_kind"], past["trainable"]) != (kind, name):
        raise ValueError(
            f"{caller}: the trainable is the {kind} {name}, but the experiment ran the "
            f"{past['trainable_kind']} {past['trainable']}; give that one (its code may have "
            "changed), or start another experiment."
        )


def check_same_space(caller: str, past: Mapping[str, Any], space: Mapping[str, Any]) -> None:
    """Raise unless the experiment searched the same values in the same domains.

    Raises:
        ValueError: names the differences.
    """
    before, now = past["space"], describe_space(space)
    found = [
        f"{key!r} was {text} and is {new}"
        for key, text in before["searched"].items()
        if (new := now["searched"].get(key) or now["constants"].get(key, "missing")) != text
    ]
    known = before["searched"].keys() | before["constants"].keys()
    added = [key for part in now.values() for key in part if key not in known]
    found += [f"{key!r} is new" for key in added]
    found += [
        f"{key!r} was {text} and is {now['searched'].get(key, 'missing')}"
        for key, text in before["constants"].items()
        if key not in now["constants"]
    ]
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ValueError(
            f"{caller}: param_space is not the one that the experiment searched: "
            f"{', '.join(found[:_SHOWN])}{more}; give the same space, or start another experiment."
        )


def changed_constants(past: Mapping[str, Any], space: Mapping[str, Any]) -> list[str]:
    """Sentences on the constants of a space that are not what they were."""
    now = describe_space(space)["constants"]
    return [
        f"param_space[{key!r}] was {text} and is {now[key]}: the trials that exist keep the old "
        "value, and new trials get the new one."
        for key, text in past["space"]["constants"].items()
        if now[key] != text
    ]


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Domain) or is_grid(node) or not isinstance(node, Mapping) or not node:
        yield path, node
        return
    for key, child in node.items():
        yield from _leaves(child, f"{path}/{key}" if path else str(key))


def _text(node: Any) -> str:
    if is_grid(node):
        return f"grid_search({_listed(node['grid_search'])})"
    if isinstance(node, Categorical):
        return f"choice({_listed(node.categories)})"
    if isinstance(node, Float):
        return _called("uniform", node.lower, node.upper, node.q, log=node.log)
    if isinstance(node, Integer):
        if node.q == 1:  # its upper bound is given as the first that is out
            return _called("randint", node.lower, node.upper + 1, None, log=node.log)
        return _called("randint", node.lower, node.upper, node.q, log=node.log)
    if isinstance(node, Normal):
        return _called("randn", node.mean, node.sd, node.q)
    if isinstance(node, Function):
        return "sample_from(…)"
    if isinstance(node, _PLAIN):
        return repr(node)
    if isinstance(node, Mapping):
        return f"{{{', '.join(f'{key!r}: {_text(value)}' for key, value in node.items())}}}"
    if isinstance(node, (list, tuple)):
        return _listed(node)
    # Two objects that were pickled apart need not be equal, nor show the same.
    return str(getattr(node, "__name__", type(node).__name__))


def _called(name: str, first: float, second: float, q: float | None, log: bool = False) -> str:
    """The call that makes a domain."""
    name = f"{'' if q is None else 'q'}{'log' if log else ''}{name}"
    return f"{name}({first:.12g}, {second:.12g}{'' if q is None else f', {q:.12g}'})"


def _listed(values: Any) -> str:
    return f"[{', '.join(map(_text, values))}]"
