"""Pickles what is sent to workers: functions by value, unless a worker can import them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from lockstep import ray_names

__all__ = [
    "LARGE_CAPTURE",
    "Outside",
    "Reduce",
    "dump",
    "dump_function",
    "large_captures",
    "local_modules",
]

_DEPTH = 4
_MODULES = 100
"""How many local modules travel with a function, at most."""
_LIMIT = 64 << 20
"""How many bytes something may have with the modules that its own imports, at most."""
LARGE_CAPTURE = 16 << 20
"""The smallest variable, in bytes, that a user is warned of: it is pickled with the function."""
_registry = threading.RLock()
"""cloudpickle's list of modules is the process's; runs may begin in several threads."""


Reduce: TypeAlias = Callable[[Any], tuple[Any, ...] | None]
"""How to pickle an object, as ``__reduce__`` says it; None: as usual."""

Outside: TypeAlias = Callable[[Any], Any]
"""What a pickle has instead of an object that is kept elsewhere; None: the object itself."""


def dump(
    value: Any,
    name: str,
    *,
    by_value: bool = False,
    like: Any = None,
    reduce: Reduce | None = None,
    outside: Outside | None = None,
) -> bytes:
    """A value for workers, as bytes.

    Args:
        value: what to send.
        name: what to call it in an error.
        by_value: the value must load where its module is missing, and so are the local modules
            that this module imports (local: not of an installed package).
        like: what is by value with this function is so here, too: a class must be the same in both.
        reduce: asked first how to pickle each object in it.
        outside: called with each object in it; returns what the pickle has instead of an object
            that is kept elsewhere.

    Raises:
        TypeError: something in it cannot be pickled; names it.
    """
    module = _module_of(value)
    if by_value:
        local = _local_modules(module, _module_of(like))
        own = [near for near in local if near is module]
        # From the most that could help to the least that is needed.
        for modules, limit in ((local, _LIMIT), (own, None)):
            # It may use something of a module that cannot be pickled, or all of a big module.
            with _registered(modules), contextlib.suppress(Exception):
                if modules:
                    return _dumps(value, limit, reduce, outside)
    with _by_value(module), _by_value(_module_of(like)):
        try:
            return _dumps(value, reduce=reduce, outside=outside)
        except Exception as error:
            raise TypeError(
                f"{_culprit(value, name) or name} was found to be non-serializable "
                f"({type(error).__name__}: {error})."
            ) from error


def dump_function(function: Callable[..., Any], config: dict[str, Any]) -> bytes:
    """The function and its config as bytes.

    Raises:
        TypeError: something in them cannot be pickled; names the variable.
    """
    with _by_value(_module_of(function)):
        try:
            return _dumps((function, config))
        except Exception as error:
            name = getattr(function, "__qualname__", repr(function))
            where = _culprit(function, name) or _culprit(config, "train_loop_config")
            raise TypeError(
                f"{where or name} was found to be non-serializable ({type(error).__name__}: "
                f"{error}); create it inside the training function instead of capturing it."
            ) from error


def large_captures(function: Callable[..., Any], config: Mapping[str, Any]) -> Iterator[str]:
    """A sentence about each large variable that is pickled with the function."""
    name = getattr(function, "__qualname__", repr(function))
    for what, size in (*_large(function, name), *_large(config, "train_loop_config")):
        yield (
            f"The training function is pickled with a large object: {what.rstrip(',')} "
            f"({size / 1e6:,.0f} MB). Every worker gets a copy when it starts, and the run keeps "
            "one. Load it inside the function, or pass it as one of the trainer's datasets."
        )


def _large(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, int]]:
    """The outermost large parts of a function or a dict: how they are called, and their sizes."""
    if depth == _DEPTH:
        return
    for inner_name, inner in _parts(value, name):
        size = _size(inner)
        if size < LARGE_CAPTURE:
            continue
        nested = isinstance(inner, (FunctionType, dict)) or inspect.ismethod(inner)
        found = list(_large(inner, inner_name, depth + 1)) if nested else []
        yield from found or [(inner_name, size)]


def _size(value: Any) -> int:
    with contextlib.suppress(Exception):
        return int(value.nbytes)
    with contextlib.suppress(Exception):
        return len(_dumps(value))
    return 0


def _dumps(
    value: Any,
    limit: int | None = None,
    reduce: Reduce | None = None,
    outside: Outside | None = None,
) -> bytes:
    import io

    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # an untyped base
        def reducer_override(self, value: Any) -> Any:
            if reduce is not None and (reduced := reduce(value)) is not None:
                return reduced
            # cloudpickle knows plain modules only; torch.backends.cudnn is of a class of its own.
            if isinstance(value, ModuleType):
                if ray_names.is_as_ray(value):
                    return ray_names.import_as_ray, ()
                name = value.__name__
                if sys.modules.get(name) is not value:
                    owner = _owner_of(value)
                    if owner is not None:
                        return getattr, owner
                elif type(value) is not ModuleType:
                    return importlib.import_module, (name,)
            return super().reducer_override(value)

    class KeepingPickler(Pickler):
        def persistent_id(self, value: Any) -> Any:
            assert outside is not None
            return outside(value)

    class Buffer(io.BytesIO):
        def write(self, data: Any) -> int:
            if limit is not None and self.tell() + memoryview(data).nbytes > limit:
                raise OverflowError(f"more than {limit} bytes")
            return super().write(data)

    buffer = Buffer()
    # Only where it is needed: pickle calls persistent_id for every object.
    (Pickler if outside is None else KeepingPickler)(buffer).dump(value)
    return buffer.getvalue()


def _owner_of(module: ModuleType) -> tuple[ModuleType, str] | None:
    """Where a module that cannot be imported by its own name is an attribute of one that can.

    A library in another language may make such modules: ``from tokenizers import trainers``.
    """
    _, _, name = module.__name__.rpartition(".")
    for owner in list(sys.modules.values()):
        is_owner = getattr(owner, "__dict__", {}).get(name) is module
        if is_owner and owner.__name__ != "__main__" and _workers_can_import(owner):
            return owner, name
    return None


def _module_of(value: Any) -> ModuleType | None:
    # Asked for an attribute, a dict that has its keys as attributes may answer anything, or raise.
    inner = inspect.unwrap(getattr(value, "func", value)) if callable(value) else value
    name = getattr(inner, "__module__", None) or type(inner).__module__
    return sys.modules.get(name)


@contextlib.contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    """Pickle the module's functions and classes by value, if a worker could not import it."""
    if module is None or module.__name__ == "__main__" or _workers_can_import(module):
        yield
        return
    with _registered([module]):
        yield


@contextlib.contextmanager
def _registered(modules: Iterable[ModuleType]) -> Iterator[None]:
    import cloudpickle

    with _registry:
        known = cloudpickle.list_registry_pickle_by_value()
        new = [module for module in modules if module.__name__ not in known]
        for module in new:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in new:
                cloudpickle.unregister_pickle_by_value(module)


def local_modules(function: Callable[..., Any]) -> list[ModuleType]:
    """The modules that are kept with the function by value, besides ``__main__``."""
    return _local_modules(_module_of(function))


def _local_modules(*roots: ModuleType | None) -> list[ModuleType]:
    """Those of ``roots`` that are not installed, and what they import of that kind, in turn.

    What a function imports when it runs is not among them.
    """
    # __main__ is pickled by value anyway, but what it imports is not.
    pending = [
        root for root in roots if root and (root.__name__ == "__main__" or not _installed(root))
    ]
    found = list(dict.fromkeys(pending))
    while pending and len(found) < _MODULES:
        for value in list(vars(pending.pop(0)).values()):
            near = value if isinstance(value, ModuleType) else _module_of_name(value)
            if near is None or near in found or _installed(near):
                continue
            if getattr(near, "__file__", None) and sys.modules.get(near.__name__) is near:
                found.append(near)
                pending.append(near)
    return [module for module in found[:_MODULES] if module.__name__ != "__main__"]


def _module_of_name(value: Any) -> ModuleType | None:
    with contextlib.suppress(Exception):  # an object may answer anything, or raise
        return sys.modules.get(value.__module__)
    return None


def _installed(module: ModuleType) -> bool:
    """Part of Python, lockstep or an installed package; ``__main__`` needs no registering."""
    root = module.__name__.partition(".")[0]
    if root in ("__main__", "lockstep") or root in sys.stdlib_module_names:
        return True
    file = getattr(module, "__file__", None) or ""
    return any(part in file for part in ("site-packages", "dist-packages"))


def _workers_can_import(module: ModuleType) -> bool:
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return False
    # A test module is not what an import would give: pytest rewrites and may rename it.
    if type(spec.loader).__module__.partition(".")[0] == "_pytest":
        return False
    if spec.origin in (None, "built-in", "frozen"):
        return True
    parent, _, _ = module.__name__.rpartition(".")
    if parent and parent not in sys.modules:
        return False
    # find_spec() returns what is loaded, unless the module is hidden for a moment.
    found = sys.modules.pop(module.__name__, None)
    try:
        fresh = importlib.util.find_spec(module.__name__)
    except (ImportError, ValueError):
        return False
    finally:
        if found is not None:
            sys.modules[module.__name__] = found
    return fresh is not None and fresh.origin == spec.origin


def _culprit(value: Any, name: str, depth: int = 0) -> str | None:
    """The innermost variable that cannot be pickled, by name."""
    if _picklable(value):
        return None
    if depth < _DEPTH:
        for inner_name, inner in _parts(value, name):
            found = _culprit(inner, inner_name, depth + 1)
            if found is not None:
                return found
    return f"{name} (a {type(value).__module__}.{type(value).__qualname__})"


def _picklable(value: Any) -> bool:
    try:
        _dumps(value)
    except Exception:
        return False
    return True


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        captured = inspect.getclosurevars(value)
        for kind, variables in (("", captured.nonlocals), ("global ", captured.globals)):
            for inner, content in variables.items():
                if not isinstance(content, ModuleType):
                    yield f"{kind}variable {inner!r}, used by {value.__qualname__},", content
        for inner, content in (value.__kwdefaults__ or {}).items():
            yield f"default of argument {inner!r} of {value.__qualname__}", content
        for content in value.__defaults__ or ():
            yield f"a default argument of {value.__qualname__}", content
    elif inspect.ismethod(value):
        yield type(value.__self__).__qualname__, value.__self__
    elif isinstance(value, dict):
        for key, content in value.items():
            yield _inside(name, f"[{key!r}]"), content
    elif isinstance(value, (list, tuple, set)):
        for index, content in enumerate(value):
            yield _inside(name, f"[{index}]"), content
    elif hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        yield from (("argument of a partial", content) for content in value.args)
        yield from ((f"partial argument {key!r}", c) for key, c in value.keywords.items())
        yield name, value.func
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        for key, content in vars(value).items():
            yield _inside(name, f".{key}"), content


def _inside(name: str, part: str) -> str:
    """The name of a part: ``config['lock']``; ``.lock of variable 'x', used by f,``."""
    return f"{part} of {name}" if name.endswith(",") else name + part
