"""What the import of a library changes in its process, besides ``sys.modules``.

Warnings filters, hooks, handlers of the root logger, functions to call at exit, variables: noted
while a server imports, undone, and done again in a script when the script imports the library.
"""

from __future__ import annotations

import atexit
import builtins
import codecs
import contextlib
import copyreg
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any

__all__ = ["Change", "State", "forget_derived", "noted_calls", "noted_loggers", "read_rank_again"]

_ATTRIBUTES: tuple[tuple[Any, str], ...] = (
    (sys, "breakpointhook"),
    (sys, "displayhook"),
    (sys, "excepthook"),
    (sys, "unraisablehook"),
    (threading, "excepthook"),
    (warnings, "formatwarning"),
    (warnings, "showwarning"),
    (logging, "_loggerClass"),
    (logging, "lastResort"),
    (logging.root, "level"),
    (logging.root.manager, "disable"),
)


def _lists() -> tuple[list[Any], ...]:
    # Not constants: catch_warnings replaces the list of filters.
    filters: Any = warnings.filters
    return filters, sys.meta_path, sys.path_hooks, sys.path, logging.root.handlers


def _mappings() -> tuple[MutableMapping[Any, Any], ...]:
    return vars(builtins), copyreg.dispatch_table


Change = Callable[[], object]
"""One thing that an import has changed: does it again, in another process. After the last of
several, call ``forget_derived``."""


class State:
    """All of it at one moment."""

    def __init__(self) -> None:
        self._lists = [list(one) for one in _lists()]
        self._mappings = [dict(one) for one in _mappings()]
        self._attributes = [getattr(owner, name) for owner, name in _ATTRIBUTES]
        self.variables = os.environ.copy()

    def restore(self) -> None:
        """Make it as it was."""
        for current, wanted in zip(_lists(), self._lists, strict=True):
            current[:] = wanted
        for mapping, then in zip(_mappings(), self._mappings, strict=True):
            for name in mapping.keys() - then.keys():
                del mapping[name]
            mapping.update(then)
        for (owner, name), value in zip(_ATTRIBUTES, self._attributes, strict=True):
            setattr(owner, name, value)
        for name in os.environ.keys() - self.variables.keys():
            del os.environ[name]
        os.environ.update(self.variables)
        forget_derived()

    def changes_since(self, before: State, read: Collection[str]) -> list[Change]:
        """What has happened between two moments.

        Args:
            before: the earlier one.
            read: the variables that were read meanwhile: a value that is set then is a default.
        """
        found: list[Change] = []
        for place, (old, new) in enumerate(zip(before._lists, self._lists, strict=True)):
            if old != new:
                found.append(_list_again(place, old, new))
        for place, (earlier, now) in enumerate(zip(before._mappings, self._mappings, strict=True)):
            if earlier != now:
                found.append(_mapping_again(place, earlier, now))
        pairs = zip(before._attributes, self._attributes, strict=True)
        for (owner, name), (old_value, value) in zip(_ATTRIBUTES, pairs, strict=True):
            if old_value is not value:
                found.append(_attribute_again(owner, name, value))
        if before.variables != self.variables:
            found.append(_variables_again(before.variables, self.variables, read))
        return found


def _list_again(place: int, old: list[Any], new: list[Any]) -> Callable[[], None]:
    """Libraries add to the front or to the end, and rarely remove."""
    same = 0
    while same < min(len(old), len(new)) and old[-1 - same] == new[-1 - same]:
        same += 1
    front = new[: len(new) - same]
    back: list[Any] = []
    if not same and new[: len(old)] == old:
        front, back = [], new[len(old) :]
    removed = [one for one in old if one not in new]

    def again() -> None:
        current = _lists()[place]
        for one in (*removed, *front, *back):
            if one in current:
                current.remove(one)
        current[:0] = front
        current += back

    return again


def _mapping_again(place: int, old: dict[Any, Any], new: dict[Any, Any]) -> Callable[[], None]:
    def again() -> None:
        current = _mappings()[place]
        for name in old.keys() - new.keys():
            current.pop(name, None)
        current.update({n: v for n, v in new.items() if n not in old or old[n] is not v})

    return again


def _attribute_again(owner: Any, name: str, value: Any) -> Callable[[], None]:
    def again() -> None:
        setattr(owner, name, value)

    return again


def _variables_again(
    old: dict[str, str], new: dict[str, str], read: Collection[str]
) -> Callable[[], None]:
    made = {name: value for name, value in new.items() if old.get(name) != value}
    defaults = set(read)

    def again() -> None:
        for name in old.keys() - new.keys():
            os.environ.pop(name, None)
        for name, value in made.items():
            if name not in defaults or name not in os.environ:
                os.environ[name] = value

    return again


_LIGHTNING = ("lightning.fabric.utilities.rank_zero", "lightning_fabric.utilities.rank_zero")


def read_rank_again(modules: Mapping[str, ModuleType]) -> None:
    """Have Lightning read its rank from the variables once more, as it does when it is imported.

    In a process that had it imported before the rank was known, every rank would be rank 0, until
    a ``Trainer`` is created.
    """
    for name in _LIGHTNING:
        found: Any = modules.get(name)
        with contextlib.suppress(AttributeError):  # not there, or another version of it
            found.rank_zero_only.rank = found._get_rank() or 0


def forget_derived() -> None:
    """After changes: what Python itself has derived from the state before them."""
    manager: Any = logging.root.manager
    manager._clear_cache()  # loggers keep whether they are enabled for a level
    changed: Any = getattr(warnings, "_filters_mutated", None)
    if changed is not None:
        changed()


@contextlib.contextmanager
def noted_calls(note: Callable[[Change], None]) -> Iterator[list[Callable[[], object]]]:
    """Within this context, note what is registered and cannot be listed: exits and codecs.

    Yields:
        What undoes each of these.
    """
    undo: list[Callable[[], object]] = []
    at_exit, codec = atexit.register, codecs.register

    def register(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        root = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        if root in sys.stdlib_module_names:  # which registers only once
            return at_exit(func, *args, **kwargs)
        note(lambda: at_exit(func, *args, **kwargs))  # not now: a server never exits like this
        return func

    def register_codec(search: Callable[[str], Any], /) -> None:
        codec(search)
        undo.append(lambda: codecs.unregister(search))
        note(lambda: codec(search))

    atexit.register, codecs.register = register, register_codec
    try:
        yield undo
    finally:
        atexit.register, codecs.register = at_exit, codec


_SETTINGS: dict[str, Any] = {
    "level": logging.NOTSET,
    "propagate": True,
    "disabled": False,
    "handlers": [],
    "filters": [],
}
"""Of a logger, as it is created."""


@contextlib.contextmanager
def noted_loggers(note: Callable[[Change], None]) -> Iterator[list[Callable[[], object]]]:
    """Within this context, note how loggers are changed, whatever they are called.

    The root logger's settings are in ``State``.

    Yields:
        What undoes it.
    """
    undo: list[Callable[[], object]] = []
    touched: set[logging.Logger] = set()
    kind: Any = logging.Logger
    names = ("__setattr__", "addHandler", "removeHandler", "addFilter", "removeFilter")
    own = {name: vars(kind).get(name) for name in names}

    def touch(logger: logging.Logger) -> None:
        if logger not in touched:
            touched.add(logger)
            kept = vars(logger)
            undo.extend(_setting_again(logger, n, kept[n]) for n in _SETTINGS if n in kept)

    def set_attribute(self: logging.Logger, name: str, value: Any) -> None:
        if self is logging.root or name not in _SETTINGS:
            object.__setattr__(self, name, value)
            return
        is_new, default = name not in vars(self), _SETTINGS[name]
        if not is_new:
            touch(self)
        elif value != default:
            undo.append(_setting_again(self, name, default))
        object.__setattr__(self, name, value)
        # A new logger is enabled: a configuration that came earlier has not known it.
        if not is_new or value != default or name == "disabled":
            note(_setting_again(self, name, value))

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: logging.Logger, *args: Any, **named: Any) -> None:
            if self is not logging.root:
                touch(self)
                note(lambda: method(self, *args, **named))
            method(self, *args, **named)

        return call

    kind.__setattr__ = set_attribute
    for name in names[1:]:
        setattr(kind, name, noted(getattr(kind, name)))
    try:
        yield undo
    finally:
        for name, method in own.items():
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


def _setting_again(logger: logging.Logger, name: str, value: Any) -> Callable[[], None]:
    kept = list(value) if isinstance(value, list) else value

    def again() -> None:
        setattr(logger, name, list(kept) if isinstance(kept, list) else kept)

    return again
