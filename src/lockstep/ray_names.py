"""Makes ``import ray`` mean lockstep, in one process and in its workers. For ``lockstep run``.

    import ray                     a module "ray" that has lockstep's names
    import ray.train.torch         the module lockstep.train.torch, under another name
    import ray.serve               Ray's own, where Ray is installed; else one sentence

The finder stands first in Python's import system. Until the user's own code imports ``ray`` it
does nothing: a library that only looks whether Ray is installed sees what is installed. From then
on ``ray`` is the same for everyone in the process, and its workers get a variable that says so.

Where Ray's own Core is needed, ``ray`` becomes Ray itself, with ``ray.train``, ``ray.tune``,
``ray.air`` and ``ray.data`` still lockstep's.

Imported before every script of ``lockstep run``, so imports here stay cheap.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

import lockstep
from lockstep import missing, settings

__all__ = [
    "RAY_VERSION",
    "home_of",
    "import_as_ray",
    "install",
    "install_in_worker",
    "is_as_ray",
    "ray_is_installed",
    "uninstall",
    "use_ray_itself",
]

RAY_VERSION = "2.60.0"
"""The version whose names lockstep follows: ``ray.__version__``."""

OURS = ("train", "tune", "air", "data")
"""What is lockstep's even where Ray's own Core is used."""

_PATHS = {
    "data.grouped_data": "data.methods.grouped",
    "data.iterator": "data",
    "data.read_api": "data",
    "train._checkpoint": "train",
    "train._internal": "train",
    "train._internal.data_config": "train",
    "train._internal.session": "air.session",
    "train._internal.syncer": "train",
    "train.session": "air.session",
    "train.trainer": "train",
    "tune.constants": "tune.result",
    "tune.context": "tune",
    "tune.resources": "tune",
    "tune.search.variant_generator": "tune.search",
    "tune.tune": "tune",
}
_HOMES = (
    "data.preprocessors",
    "train.horovod",
    "train.huggingface.transformers",
    "train.lightgbm",
    "train.lightning",
    "train.tensorflow",
    "train.torch",
    "train.v2.api",
    "train.xgboost",
    "tune.analysis",
    "tune.logger",
    "tune.stopper",
    "tune.trainable",
    "tune.utils",
)
"""Where Ray has a file for each class, and lockstep one module for all."""

_INSTALL = "pip install 'lockstep-train[ray]'"
_OLD = {
    "air": "lockstep.train (ray.train)",
    "air.session": "lockstep.train (ray.train)",
    "air.config": "lockstep.train (ray.train)",
    "air.checkpoint": "lockstep.train (ray.train)",
    "air.result": "lockstep.train (ray.train)",
    "air.callbacks": "lockstep.air.integrations (ray.air.integrations)",
}


class _Finder:
    """Answers for ``ray`` and everything in it."""

    def __init__(self) -> None:
        self.active = False
        """Whether ``ray`` is lockstep's for everyone; until then for the user's own code only."""
        self.ray_itself = False
        """Whether ``ray`` is Ray, except what is in OURS."""
        self.noted = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        if root != "ray" or not (self.active or _asked_by_user()):
            return None
        if rest.partition(".")[0] in OURS:
            self._activate()
            self._note(rest)
            return _spec(fullname, _Alias(f"lockstep.{home_of(rest)}"))
        if self.ray_itself:
            return None
        self._activate()
        if not rest:
            return _spec("ray", _Root())
        if _exists(f"lockstep.{rest}"):
            return _spec(fullname, _Alias(f"lockstep.{rest}"))
        return _spec(fullname, _OfRay())

    def _activate(self) -> None:
        if not self.active:
            self.active = True
            os.environ[settings.RAY_NAMES] = "1"  # workers inherit it

    def _note(self, rest: str) -> None:
        """One deprecation note a process, for the first old spelling that is imported."""
        today = _OLD.get(rest) or _OLD.get(rest.rpartition(".")[0])
        if today and not self.noted and _asked_by_user():
            self.noted = True
            frame = _importer()
            warnings.warn_explicit(
                f"ray.{rest} is an old spelling; today it is {today}. It keeps working; "
                "lockstep port rewrites it.",
                DeprecationWarning,
                frame.f_code.co_filename,
                frame.f_lineno,
                frame.f_globals.get("__name__"),
            )


def _spec(name: str, loader: Any) -> ModuleSpec:
    return ModuleSpec(name, loader, is_package=True)


class _Root:
    """Loads the module ``ray``: lockstep's names, and what belongs to Ray Core."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Ray("ray")

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = RAY_VERSION  # type: ignore[attr-defined]  # a new attribute


class _Ray(ModuleType):
    """What a script has as ``ray``."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module 'ray' has no attribute {name!r}")
        try:
            return getattr(lockstep, name)
        except AttributeError as error:
            _, found, advice = str(error).partition(": ")
            text = advice.removesuffix(".") if found else None
        missing.raise_missing_name("ray", name, text)

    def __dir__(self) -> list[str]:
        return sorted({*dir(lockstep), "__version__"})


class _Alias:
    """Loads a module of lockstep under Ray's name: the same object."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> None:
        """Python creates one, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        try:
            real = sys.modules[name] = importlib.import_module(self._real)
            if self._real.removeprefix("lockstep.") in _HOMES:
                vars(real).setdefault("__path__", [])  # Ray has files below it
        except ModuleNotFoundError as error:
            if error.name != self._real:
                raise  # something that the module itself needs
            raise ModuleNotFoundError(
                f"No module named {name!r}: lockstep has no {self._real}. "
                "docs/compatibility.md lists what it has.",
                name=name,
            ) from None


class _OfRay:
    """Loads a part of Ray that lockstep does not have: from Ray, if it is installed."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Python creates one, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        importlib.import_module("lockstep.core").use_ray_core(name)
        sys.modules.pop(name, None)
        sys.modules[name] = importlib.import_module(name)


_finder = _Finder()


def install() -> None:
    """Make ``ray`` lockstep's for what the user's own code imports from now on."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def install_in_worker() -> None:
    """Do the same in a process of a run whose driver has imported ``ray`` like this."""
    if settings.ray_names():
        install()
        _finder.active = _finder.noted = True


def uninstall() -> None:
    """Undo ``install``, for tests: later imports of ``ray`` are Ray's."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        if _is_ours(name):
            del sys.modules[name]
    _finder.active = _finder.ray_itself = _finder.noted = False
    os.environ.pop(settings.RAY_NAMES, None)


def is_as_ray(module: ModuleType) -> bool:
    """Whether it is the module that scripts have as ``ray``."""
    return type(module) is _Ray


def import_as_ray() -> ModuleType:
    """The module ``ray`` with lockstep's names: what a pickle has instead of the module."""
    install()
    _finder.active = True
    return importlib.import_module("ray")


def home_of(path: str) -> str:
    """Where lockstep has the names of a path below ``ray``: there, or in another module."""
    if _exists(f"lockstep.{path}"):
        return path
    parent = path.rpartition(".")[0]
    return _PATHS.get(path) or (parent if parent in _HOMES else path)


def ray_is_installed() -> bool:
    """Whether Ray itself can be imported."""
    return PathFinder.find_spec("ray") is not None


def use_ray_itself() -> ModuleType:
    """Import Ray, and let ``ray`` be Ray from now on; what is in OURS stays lockstep's.

    Raises:
        ImportError: Ray is not installed.
    """
    if _finder not in sys.meta_path or _finder.ray_itself or not _finder.active:
        return importlib.import_module("ray")
    if not ray_is_installed():
        raise ModuleNotFoundError(f"Ray is not installed: {_INSTALL}", name="ray")
    mine = {
        name: sys.modules.pop(name)
        for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]
        if _is_ours(name)
    }
    _finder.ray_itself = True
    try:
        ray = importlib.import_module("ray")
    except BaseException:
        _finder.ray_itself = False
        sys.modules.update(mine)
        raise
    for name in OURS:
        importlib.import_module(f"ray.{name}")
    return ray


def _is_ours(name: str) -> bool:
    module = sys.modules[name]
    return type(module) is _Ray or module.__name__.partition(".")[0] == "lockstep"


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _importer() -> FrameType:
    """The code that imports: the first frame outside the import system."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_import_system(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_import_system(file: str) -> bool:
    return file.startswith("<frozen importlib") or file in (__file__, importlib.__file__)


def _asked_by_user() -> bool:
    """Whether the code that imports is the user's own: of no installed package, nor Python's."""
    file = _importer().f_code.co_filename
    if "site-packages" in file or "dist-packages" in file or file.startswith("<frozen "):
        return False
    return not file.startswith(_INSTALLED)


_INSTALLED = tuple(
    os.path.join(place, "")
    for place in (os.path.dirname(os.__file__), os.path.dirname(lockstep.__file__))
)
