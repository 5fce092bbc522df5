"""Search spaces: from a nested ``param_space`` and a number to one resolved config.

Nothing is enumerated: config ``k`` is computed from ``k``. The grid point is the mixed-radix number
``k`` (the first key varies fastest). Each random value comes from a generator of its own, keyed by
seed, number and path in the space. So the value does not depend on the order in which configs are
resolved, nor on keys that are added elsewhere.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lockstep.train.function.arguments import config_like
from lockstep.tune.search.sample import Categorical, Domain, Function

__all__ = [
    "Draw",
    "Path",
    "Space",
    "category_of",
    "children",
    "contains",
    "evaluated_params",
    "experiment_tag",
    "given_values",
    "has_unresolved",
    "is_grid",
    "merge",
    "path_name",
]

Path = tuple[Any, ...]
"""The path to a value in a space: keys of dicts, indices of lists."""

Draw = Callable[[Path, Domain, Any], Any]
"""Draws a value: called with the path, the domain, and the argument for ``sample_from``."""

_MISSING = object()


def is_grid(node: object) -> bool:
    """Whether the node is a result of ``tune.grid_search``."""
    return isinstance(node, dict) and len(node) == 1 and "grid_search" in node


def has_unresolved(node: object) -> bool:
    """Whether the node contains a domain or a grid anywhere."""
    if isinstance(node, Domain) or is_grid(node):
        return True
    return any(has_unresolved(child) for _, child in children(node))


def contains(node: Any, value: Any) -> bool:
    """Whether a part of a space can resolve to this value."""
    if is_grid(node):
        return any(contains(choice, value) for choice in node["grid_search"])
    if isinstance(node, Categorical):
        return any(contains(choice, value) for choice in node.categories)
    if isinstance(node, Domain):
        return node.is_valid(value)
    if isinstance(node, dict) and isinstance(value, Mapping):
        return node.keys() == value.keys() and all(contains(node[k], value[k]) for k in node)
    if isinstance(node, (list, tuple)) and isinstance(value, (list, tuple)):
        return len(node) == len(value) and all(map(contains, node, value))
    return _same(node, value)


def category_of(domain: Categorical, value: Any) -> int:
    """The index of the first category that contains the value."""
    return next(i for i, category in enumerate(domain.categories) if contains(category, value))


def given_values(node: Any, given: Any, path: Path = ()) -> Iterator[tuple[Path, Domain, Any]]:
    """(path, domain, value) of each domain that a config, or a part of one, has a value for.

    The value may be outside of its domain. Of a choice only the domains of the given category
    follow, with its index in their path.
    """
    if isinstance(node, Function) or not has_unresolved(node):
        return
    if isinstance(node, Domain):
        yield path, node, given
        if isinstance(node, Categorical) and contains(node, given):
            index = category_of(node, given)
            yield from given_values(node.categories[index], given, (*path, index))
        return
    for key, child in children(node):
        try:
            inside = given[key]
        except (KeyError, IndexError, TypeError):
            continue  # a part of a config may lack it
        yield from given_values(child, inside, (*path, key))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` merged over ``base``, dict by dict; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping) and not is_grid(below):
            value = merge(below, value)
        merged[key] = value
    return config_like(base, merged)


class Space:
    """A ``param_space``, ready to be resolved.

    Raises:
        TypeError: the space is not a dict.
        ValueError: a grid is inside a ``choice``, where its points cannot be counted.
    """

    def __init__(self, param_space: Mapping[str, Any] | None) -> None:
        if param_space is None:
            param_space = {}
        if not isinstance(param_space, Mapping):
            raise TypeError(
                f"param_space={param_space!r}: expected a dict of hyperparameters, such as "
                "{'lr': tune.loguniform(1e-4, 1e-1)}."
            )
        self._root = dict(param_space)
        self._counts: dict[int, int] = {}  # id of a node with a grid in it → its points
        self.size = self._count(self._root, ())
        """The number of points of the grid; 1 without a grid."""

    def resolve(self, point: int, seed: int, draw: int) -> dict[str, Any]:
        """A config: a point of the grid (modulo ``size``), and the random values of a draw."""

        def at_random(path: Path, domain: Domain, spec: Any) -> Any:
            return domain.draw(random.Random(f"{seed}/{draw}/{path}"), spec)

        return self.resolve_with(at_random, point)

    def resolve_with(self, draw: Draw, point: int = 0) -> dict[str, Any]:
        """A config: a point of the grid, and the value that ``draw`` returns for each domain."""
        tree, _ = self._decode(self._root, point)
        return _Resolution(tree, draw).all()

    def _count(self, node: Any, path: Path) -> int:
        total, gridless = 1, not _contains_grid(node)
        if is_grid(node):
            values = node["grid_search"]
            if not isinstance(values, (list, tuple)) or not values:
                raise ValueError(
                    f"param_space {_name(path)}: the grid_search of {values!r} has no values; "
                    "give a list with at least one."
                )
            total = sum(self._count(value, (*path, i)) for i, value in enumerate(values))
        elif isinstance(node, Categorical):
            for value in node.categories:
                if self._count(value, path) > 1:
                    raise ValueError(
                        f"param_space {_name(path)}: a grid_search inside a choice has no fixed "
                        "size; make the choice a grid_search, too."
                    )
        else:
            for key, child in children(node):
                total *= self._count(child, (*path, key))
        if not gridless:
            self._counts[id(node)] = total
        return total

    def _decode(self, node: Any, number: int) -> tuple[Any, int]:
        """The node with one value of each of its grids, and the remaining digits of the number."""
        size = self._counts.get(id(node))
        if size is None:
            return node, number
        if is_grid(node):
            number, digit = divmod(number, size)
            for value in node["grid_search"]:
                if digit < self._counts.get(id(value), 1):
                    return self._decode(value, digit)[0], number
                digit -= self._counts.get(id(value), 1)
        if isinstance(node, dict):
            chosen = {}
            for key, child in node.items():
                chosen[key], number = self._decode(child, number)
            return chosen, number
        items = []
        for child in node:
            item, number = self._decode(child, number)
            items.append(item)
        return _like(node, items), number


class _Resolution:
    """The random values of one config. A value that a function uses is drawn before it."""

    def __init__(self, tree: dict[str, Any], draw: Draw) -> None:
        self._tree = tree
        self._draw_value = draw
        self._drawn: dict[Path, Any] = {}
        self._drawing: list[Path] = []

    def all(self) -> dict[str, Any]:
        """The complete config."""
        resolved: dict[str, Any] = self._resolve((), self._tree)
        return resolved

    def view(self, path: Path, node: Any) -> Any:
        """What a function sees at a path: a value, or a container that resolves on access."""
        if isinstance(node, Domain):
            return self._draw(path, node)
        return _View(self, path, node) if isinstance(node, (dict, list, tuple)) else node

    def _resolve(self, path: Path, node: Any) -> Any:
        if isinstance(node, Domain):
            return self._draw(path, node)
        if isinstance(node, dict):
            return {key: self._resolve((*path, key), child) for key, child in node.items()}
        if isinstance(node, (list, tuple)):
            return _like(node, [self._resolve((*path, i), item) for i, item in enumerate(node)])
        return node

    def _draw(self, path: Path, domain: Domain) -> Any:
        found = self._drawn.get(path, _MISSING)
        if found is not _MISSING:
            return found
        if path in self._drawing:
            circle = " → ".join(
                _name(p) for p in [*self._drawing[self._drawing.index(path) :], path]
            )
            raise ValueError(
                f"param_space: sample_from functions wait for each other ({circle}); "
                "let one of them use only values drawn without it."
            )
        self._drawing.append(path)
        try:
            value = self._draw_value(path, domain, _Spec(_View(self, (), self._tree)))
            if _contains_grid(value):
                raise ValueError(
                    f"param_space {_name(path)}: a sample_from function returned {value!r}, whose "
                    "grid_search cannot be counted any more; put the grid into the space itself."
                )
            if has_unresolved(value):
                value = self._resolve((*path, _branch(domain, value)), value)
        finally:
            self._drawing.pop()
        self._drawn[path] = value
        return value


def _branch(domain: Domain, value: Any) -> int | str:
    """Which value of a choice was drawn, so that the domains of each value have their own path."""
    categories = domain.categories if isinstance(domain, Categorical) else ()
    return next((i for i, category in enumerate(categories) if category is value), "*")


class _View(Mapping[Any, Any]):
    """A dict or list of the space for ``sample_from``, by key and as attributes."""

    def __init__(self, resolution: _Resolution, path: Path, node: Any) -> None:
        self._resolution, self._path, self._node = resolution, path, node

    def __getitem__(self, key: Any) -> Any:
        return self._resolution.view((*self._path, key), self._node[key])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not isinstance(self._node, dict) or name not in self._node:
            raise AttributeError(
                f"param_space {_name(self._path)} has no {name!r}; it has "
                f"{', '.join(map(repr, self))}."
            )
        return self[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._node if isinstance(self._node, dict) else range(len(self._node)))

    def __len__(self) -> int:
        return len(self._node)


class _Spec:
    """The argument of ``sample_from``: ``spec.config.x``, or ``spec["x"]`` for short."""

    def __init__(self, config: _View) -> None:
        self.config = config

    def __getitem__(self, key: Any) -> Any:
        return self.config if key == "config" else self.config[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.config, name)


def evaluated_params(param_space: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config that are not constants of its space, with ``a/b`` names."""
    return {path_name(path): value for path, value in _varied(param_space, config)}


def experiment_tag(number: int, param_space: Any, config: Mapping[str, Any]) -> str:
    """A trial's number and its values, fit for a file name: ``3_lr=0.0100,width=8``."""
    varied = sorted(_varied(param_space, config), key=lambda item: [str(key) for key in item[0]])
    if not varied:
        return str(number)
    return f"{number}_" + ",".join(f"{_clean(path[-1])}={_clean(value)}" for path, value in varied)


def _varied(space: Any, config: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if config is space:
        return
    parts = list(children(config))
    if not parts:
        if path and (space is _MISSING or has_unresolved(space) or not _same(space, config)):
            yield path, config
        return
    for key, child in parts:
        try:
            below = _MISSING if isinstance(space, Domain) or is_grid(space) else space[key]
        except (KeyError, IndexError, TypeError):
            below = _MISSING
        yield from _varied(below, child, (*path, key))


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # an array, for example, compares element by element
        return one is other


def children(node: Any) -> Iterator[tuple[Any, Any]]:
    """(key, value) of a dict, (index, value) of a list or tuple; nothing of other values."""
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, (list, tuple)):
        yield from enumerate(node)


def _like(node: Any, items: list[Any]) -> Any:
    """The items as a list, a tuple, or a named tuple."""
    if isinstance(node, list):
        return items
    return type(node)(*items) if hasattr(node, "_fields") else tuple(items)


def _contains_grid(node: Any) -> bool:
    return is_grid(node) or any(_contains_grid(child) for _, child in children(node))


def path_name(path: Path) -> str:
    """``inner/lr``."""
    return "/".join(map(str, path))


def _name(path: Path) -> str:
    return path_name(path) or "(the whole)"


def _clean(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"
    return re.sub("[^a-zA-Z0-9_-]+", "_", str(value))[:40].strip("_")
