"""Preloaded modules, which stay hidden until a script imports them.

The server records what each package's import needs and changes. Then it removes the modules from
``sys.modules`` and undoes the changes: a script that is forked finds what a new interpreter has.
Where the script imports a package, a finder gives it the modules, those that the package imports,
and their changes, in the order in which the server has seen them.

    Preloaded.recording()  ─▶  hide()   ─ fork ─▶   expose()  ─▶  import: _activate()
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import machinery
from types import FrameType, ModuleType
from typing import Any

from lockstep import settings
from lockstep.warm.effects import (
    Change,
    State,
    forget_derived,
    noted_calls,
    noted_loggers,
    read_rank_again,
)
from lockstep.warm.variables import READ_LATER, recorded_reads

__all__ = ["Preloaded", "package_of"]


def package_of(name: str) -> str:
    """What can be left out: a package; of lockstep a module."""
    root = name.partition(".")[0]
    return name if root == "lockstep" else root


class _Group:
    """Modules that are exposed together: those of a package that one import has loaded."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.imports: set[str] = set()
        """The modules that it imports."""
        self.modules: dict[str, ModuleType] = {}
        self.attributes: list[tuple[dict[str, Any], str, ModuleType]] = []
        """The modules that are attributes of modules of other groups."""
        self.reads: set[str] = set()


class Preloaded:
    """What a server has imported. The working directory must be one that no library knows."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        """Package → what it did that a later script would have done otherwise."""
        self.variables: dict[str, str] = {}
        """The variables that imports have set."""
        self._nobody = _Group("")
        self._groups: dict[str, dict[int, _Group]] = {}
        """Of each package: which import has loaded it → the group."""
        self._group_of: dict[str, _Group] = {}
        self._changes: list[tuple[_Group, Change]] = []
        self._importing = [self._nobody]
        self._count = 0
        self._undo: list[list[Callable[[], object]]] = []
        self._before = State()
        self._last = self._before
        self._known = set(sys.modules)
        self._hidden: dict[str, ModuleType] = {}
        self._active: set[_Group] = set()
        self._lock = threading.RLock()
        self._looked_up: set[str] = set()
        self._directory = os.getcwd()
        self._random: list[random.Random] = []
        """Generators that imports have made, and not seeded."""

    @property
    def reads(self) -> set[str]:
        """The variables that imports have read."""
        groups = (group for of_package in self._groups.values() for group in of_package.values())
        return {name for group in (self._nobody, *groups) for name in group.reads}

    @property
    def names(self) -> set[str]:
        """Every module that is there, hidden or not."""
        return {*sys.modules, *self._hidden}

    @property
    def modules(self) -> Mapping[str, ModuleType]:
        """Those that are hidden."""
        return self._hidden

    @property
    def looked_up(self) -> set[str]:
        """The files that imports have looked for, besides modules."""
        return self._looked_up

    # In the server.

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Within this context modules are imported."""
        with contextlib.ExitStack() as stack:
            reads = stack.enter_context(recorded_reads())
            self._undo.append(stack.enter_context(noted_calls(self._note)))
            self._undo.append(stack.enter_context(noted_loggers(self._note)))
            stack.enter_context(_noted_imports(self._imports))
            stack.enter_context(_noted_execution(lambda name: self._running(name, reads)))
            stack.enter_context(_noted_files(self._looks_at))
            stack.enter_context(_noted_generators(self._random))
            self._last = State()  # what follows is the libraries'
            yield
            self._checkpoint(reads)
        now, before = self._last.variables, self._before.variables
        self.variables = {name: now[name] for name in now if before.get(name) != now[name]}

    def load(self, name: str) -> None:
        """Import a module, and all that it imports."""
        self._count += 1
        before = set(sys.modules)
        try:
            importlib.import_module(name)
        finally:
            for new in sys.modules.keys() - before:  # also those that have no code
                self._group(new)

    def _group(self, name: str) -> _Group:
        package = package_of(name)
        if package in sys.stdlib_module_names:
            return self._nobody  # what Python's own modules do is the same in every process
        if name not in self._group_of:
            of_package = self._groups.setdefault(package, {})
            self._group_of[name] = of_package.setdefault(self._count, _Group(package))
        return self._group_of[name]

    def _note(self, change: Change) -> None:
        self._changes.append((self._importing[-1], change))

    def _imports(self, name: str) -> None:
        self._importing[-1].imports.add(name)

    @contextlib.contextmanager
    def _running(self, name: str, reads: set[str]) -> Iterator[None]:
        group = self._group(name)
        self._imports(name)  # also where native code imports it
        if self._importing[-1] is group:
            yield
            return
        self._checkpoint(reads)
        self._importing.append(group)
        try:
            yield
        finally:
            self._checkpoint(reads)
            self._importing.pop()

    def _checkpoint(self, reads: set[str]) -> None:
        """Give what has happened since the last time to the group that is being imported."""
        state = State()
        for change in state.changes_since(self._last, reads):
            self._note(change)
        self._importing[-1].reads |= reads
        reads.clear()
        self._last = state

    def _looks_at(self, path: str) -> None:
        if os.path.isabs(path) and not path.startswith(self._directory):
            self._looked_up.add(path)
            return
        name = os.path.relpath(path, self._directory)
        for package in {group.package for group in self._importing} - {""}:
            self.problems.setdefault(package, f"it looks for {name!r} in the working directory")

    def hide(self) -> None:
        """Remove everything that was imported from sight."""
        for name in [name for name in self._group_of if name in sys.modules]:
            self._hidden[name] = self._group_of[name].modules[name] = sys.modules.pop(name)
        for name, module in self._hidden.items():
            loader = getattr(getattr(module, "__spec__", None), "loader", None)
            if isinstance(loader, machinery.ExtensionFileLoader):
                # What native code imports passes by ``__import__``.
                for value in list(vars(module).values()):
                    key = "__name__" if isinstance(value, ModuleType) else "__module__"
                    if isinstance(value, (ModuleType, type)) or callable(value):
                        origin = getattr(value, key, None)
                        if isinstance(origin, str) and origin in self._group_of:
                            self._group_of[name].imports.add(origin)
            parent, _, own = name.rpartition(".")
            names = getattr(self._module(parent), "__dict__", {})
            group = self._group_of[name]
            if names.get(own) is module and self._group_of.get(parent) is not group:
                group.attributes.append((names, own, module))
                del names[own]
        for undo in (one for undone in self._undo for one in undone):
            undo()
        self._before.restore()
        for group, change in self._changes:
            if not group.modules:
                change()
        forget_derived()
        self._changes = [(group, change) for group, change in self._changes if group.modules]

    # In a forked process.

    def expose(
        self,
        environment: Mapping[str, str],
        path: list[str],
        stale: Callable[[str, str], None] | None = None,
    ) -> None:
        """Give modules to whoever imports them, from now on.

        Args:
            environment: the variables that this process has now.
            path: ``sys.path`` as it is now; ``sys.path`` itself may change.
            stale: called with a variable and a package which has not seen its new value.
        """
        self._environment = dict(environment)
        self._path = list(path)
        self._stale = stale
        for generator in self._random:  # a fork copies its state
            generator.seed()
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> machinery.ModuleSpec | None:
        """The finder's one method; see ``sys.meta_path``."""
        module = self._hidden.get(name)
        if module is None:
            return None
        if path is None and sys.path != self._path and not self._is_found_there(name, module):
            return None
        parent = name.rpartition(".")[0]
        known = self._group_of.get(parent)
        if known is not None and sys.modules.get(parent) is not known.modules.get(parent):
            return None  # of another package of the same name
        return _spec(name, module, self)

    def _is_found_there(self, name: str, module: ModuleType) -> bool:
        """Whether an import that follows ``sys.path`` finds the preloaded module."""
        if name in sys.builtin_module_names or getattr(module, "__spec__", None) is None:
            return True
        found = machinery.PathFinder.find_spec(name)
        return found is None or found.origin == module.__spec__.origin  # type: ignore[union-attr]

    def activate(self, name: str) -> ModuleType:
        """The script imports a module: it is there from now on, with all that it needs."""
        with self._lock:
            module = self._hidden.get(name)
            if module is None:
                return sys.modules[name]  # another thread was faster
            wanted: dict[_Group, None] = {}
            self._collect(self._group_of[name], wanted)
            for group in wanted:
                for own, found in group.modules.items():
                    sys.modules.setdefault(own, found)  # the script may have put its own there
                    del self._hidden[own]
                for names, own, found in group.attributes:
                    names.setdefault(own, found)
            self._active.update(wanted)
            self._check_variables(wanted)
            for group, change in self._changes:
                if group in wanted:
                    with contextlib.suppress(Exception):
                        change()
            forget_derived()
            for group in wanted:
                if "numpy.random" in group.modules:  # a fork copies the random state
                    group.modules["numpy.random"].seed()
                read_rank_again(group.modules)
            return module

    def _collect(self, group: _Group, wanted: dict[_Group, None]) -> None:
        if group in wanted or group in self._active:
            return
        wanted[group] = None
        for name in group.imports:
            if name in self._group_of:
                self._collect(self._group_of[name], wanted)
        # What was there before of the same package: not every import can be seen.
        for other in self._groups[group.package].values():
            if other is group:
                break
            self._collect(other, wanted)

    def _check_variables(self, wanted: Iterable[_Group]) -> None:
        if self._stale is None:
            return
        now = os.environ.copy()
        differing = {
            name
            for name in self._environment.keys() | now.keys()
            if self._environment.get(name) != now.get(name)
            and self.variables.get(name) != now.get(name)
        } - READ_LATER
        for group in wanted if differing else ():
            # Others that native code may read are set by libraries, too, and rarely matter.
            for name in differing & group.reads.union(settings.THREAD_VARIABLES):
                self._stale(name, group.package)
                return

    def _module(self, name: str) -> ModuleType | None:
        return sys.modules.get(name) or self._hidden.get(name)


class _Loader:
    """Gives out a module that is loaded already."""

    def __init__(self, preloaded: Preloaded, spec: machinery.ModuleSpec | None) -> None:
        self._preloaded = preloaded
        self._spec = spec

    def create_module(self, spec: machinery.ModuleSpec) -> ModuleType:
        return self._preloaded.activate(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        with contextlib.suppress(AttributeError):  # not every library's module is one
            module.__spec__ = self._spec  # the import system has replaced it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec.loader, name)  # type: ignore[union-attr]


def _spec(name: str, module: ModuleType, preloaded: Preloaded) -> machinery.ModuleSpec:
    own = getattr(module, "__spec__", None)
    loader: Any = _Loader(preloaded, own)
    spec = machinery.ModuleSpec(name, loader, origin=getattr(own, "origin", None))
    spec.submodule_search_locations = getattr(own, "submodule_search_locations", None)
    spec.cached = getattr(own, "cached", None)
    spec.has_location = getattr(own, "has_location", False)
    return spec


@contextlib.contextmanager
def _noted_imports(note: Callable[[str], None]) -> Iterator[None]:
    """Within this context, note the name of each module that is imported, loaded or not."""
    bootstrap: Any = importlib._bootstrap
    statement, function = builtins.__import__, bootstrap._gcd_import

    def by_statement(name: str, *args: Any, **kwargs: Any) -> Any:
        found = statement(name, *args, **kwargs)
        given = dict(zip(("globals", "locals", "fromlist", "level"), args, strict=False), **kwargs)
        if not given.get("level"):
            note(name)
            for own in given.get("fromlist") or ():
                if f"{name}.{own}" in sys.modules:
                    note(f"{name}.{own}")
        return found

    def by_function(name: str, package: Any = None, level: int = 0) -> Any:
        found = function(name, package, level)
        if level == 0:
            note(name)
        return found

    builtins.__import__, bootstrap._gcd_import = by_statement, by_function
    try:
        yield
    finally:
        builtins.__import__, bootstrap._gcd_import = statement, function


@contextlib.contextmanager
def _noted_execution(
    running: Callable[[str], contextlib.AbstractContextManager[None]],
) -> Iterator[None]:
    """Within this context, have the code of each module run in a context of its own."""
    loaders: tuple[Any, ...] = (machinery.SourceFileLoader, machinery.ExtensionFileLoader)

    def noted(original: Any) -> Any:
        def exec_module(self: Any, module: ModuleType) -> None:
            with running(module.__name__):
                original(self, module)

        return exec_module

    own = [vars(loader).get("exec_module") for loader in loaders]
    for loader in loaders:
        loader.exec_module = noted(loader.exec_module)
    try:
        yield
    finally:
        for loader, method in zip(loaders, own, strict=True):
            if method is None:
                del loader.exec_module
            else:
                loader.exec_module = method


@contextlib.contextmanager
def _noted_generators(found: list[random.Random]) -> Iterator[None]:
    """Within this context, keep each generator that is made with a seed of the system's."""
    original = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        original(self, a, version)
        found[:] = [one for one in found if one is not self] + [self] * (a is None)

    random.Random.seed = seed  # type: ignore[method-assign]
    try:
        yield
    finally:
        random.Random.seed = original  # type: ignore[method-assign]


_LOOKS: tuple[tuple[Any, str], ...] = (
    (builtins, "open"),
    (io, "open"),
    (os, "access"),
    (os, "listdir"),
    (os, "open"),
    (os, "scandir"),
    (os, "stat"),
)


class _Look:
    """A function that looks at a file, noted. A library may keep it: then it stays the function.

    No Python function: as an attribute of a class it must not become a method. It is in the same
    sets as the function (``os.supports_dir_fd``).
    """

    def __init__(self, original: Any, note: Callable[[str], None]) -> None:
        self._original = original
        self.note: Callable[[str], None] | None = note

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else kwargs.get("path", kwargs.get("file", "."))
        if self.note is not None and not isinstance(path, int) and not _looks_for_source():
            with contextlib.suppress(TypeError, ValueError):
                self.note(os.fsdecode(path))
        return self._original(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __eq__(self, other: object) -> bool:
        return other is self or bool(other == self._original)

    def __hash__(self) -> int:
        return hash(self._original)


def _looks_for_source() -> bool:
    """Whether a line of code is looked for, by the name of its file, which may be none.

    A tool that measures which lines run does that, too.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in ("genericpath", "posixpath"):
        frame = frame.f_back
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    return name.partition(".")[0] in ("coverage", "inspect", "linecache", "tokenize")


@contextlib.contextmanager
def _noted_files(note: Callable[[str], None]) -> Iterator[None]:
    """Within this context, note the files that Python code looks for."""
    looks = [_Look(getattr(owner, name), note) for owner, name in _LOOKS]
    for (owner, name), look in zip(_LOOKS, looks, strict=True):
        setattr(owner, name, look)
    try:
        yield
    finally:
        for (owner, name), look in zip(_LOOKS, looks, strict=True):
            setattr(owner, name, look._original)
            look.note = None
