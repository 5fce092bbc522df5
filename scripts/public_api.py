"""Write down the public surface of lockstep, one line a member, in ``tests/public_api.txt``.

    python scripts/public_api.py    # renews the file (make signatures)

``tests/test_public_api.py`` compares the file with the code: a change of a public name or
signature shows as a diff of that file. The text is the same on every supported Python.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef

FILE = Path(__file__).resolve().parents[1] / "tests" / "public_api.txt"

# A thing with several public names is described under the first one, in this order of modules.
MODULES = (
    "lockstep",
    "lockstep.train",
    "lockstep.train.base_trainer",
    "lockstep.train.callbacks",
    "lockstep.train.data_parallel_trainer",
    "lockstep.train.horovod",
    "lockstep.train.huggingface",
    "lockstep.train.huggingface.transformers",
    "lockstep.train.lightning",
    "lockstep.train.tensorflow",
    "lockstep.train.tensorflow.keras",
    "lockstep.train.torch",
    "lockstep.train.tracking",
    "lockstep.tune",
    "lockstep.tune.callback",
    "lockstep.tune.error",
    "lockstep.tune.execution.placement_groups",
    "lockstep.tune.experiment",
    "lockstep.tune.integration",
    "lockstep.tune.integration.comet",
    "lockstep.tune.integration.keras",
    "lockstep.tune.integration.lightgbm",
    "lockstep.tune.integration.mlflow",
    "lockstep.tune.integration.pytorch_lightning",
    "lockstep.tune.integration.ray_train",
    "lockstep.tune.integration.wandb",
    "lockstep.tune.integration.xgboost",
    "lockstep.tune.logger",
    "lockstep.tune.logger.comet",
    "lockstep.tune.logger.csv",
    "lockstep.tune.logger.json",
    "lockstep.tune.logger.logger",
    "lockstep.tune.logger.mlflow",
    "lockstep.tune.logger.tensorboardx",
    "lockstep.tune.logger.wandb",
    "lockstep.tune.plots",
    "lockstep.tune.progress_reporter",
    "lockstep.tune.schedulers",
    "lockstep.tune.schedulers.async_hyperband",
    "lockstep.tune.schedulers.hyperband",
    "lockstep.tune.schedulers.median_stopping_rule",
    "lockstep.tune.schedulers.pbt",
    "lockstep.tune.search",
    "lockstep.tune.search.basic_variant",
    "lockstep.tune.search.concurrency_limiter",
    "lockstep.tune.search.optuna",
    "lockstep.tune.search.repeater",
    "lockstep.tune.search.searcher",
    "lockstep.tune.stopper",
    "lockstep.tune.syncer",
    "lockstep.tune.tune_config",
    "lockstep.tune.tuner",
    "lockstep.tune.utils",
    "lockstep.tune.utils.util",
    "lockstep.data",
    "lockstep.air",
    "lockstep.air.callbacks",
    "lockstep.air.callbacks.comet",
    "lockstep.air.callbacks.keras",
    "lockstep.air.callbacks.mlflow",
    "lockstep.air.callbacks.wandb",
    "lockstep.air.checkpoint",
    "lockstep.air.config",
    "lockstep.air.integrations",
    "lockstep.air.integrations.comet",
    "lockstep.air.integrations.keras",
    "lockstep.air.integrations.mlflow",
    "lockstep.air.integrations.wandb",
    "lockstep.air.result",
    "lockstep.air.session",
    "lockstep.exceptions",
    "lockstep.cloudpickle",
    "lockstep.runtime_context",
    "lockstep.runtime_env",
    "lockstep.types",
    "lockstep.util",
    "lockstep.util.accelerators",
    "lockstep.util.annotations",
    "lockstep.util.debug",
    "lockstep.testing",
)

# Some of their classes are made on first use from a framework, which may not be installed.
MADE_FROM_A_FRAMEWORK = (
    "lockstep.train.huggingface.transformers",
    "lockstep.train.lightning",
    "lockstep.tune.integration.pytorch_lightning",
)

# Of the special methods, only those that a user's code calls by syntax.
SPECIAL = {
    "__add__",
    "__call__",
    "__contains__",
    "__enter__",
    "__exit__",
    "__getitem__",
    "__iter__",
    "__len__",
    "__next__",
    "__or__",
    "__setitem__",
}


def public_api() -> str:
    """The text of the file: a paragraph for each module, sorted by name within it."""
    modules = [importlib.import_module(name) for name in MODULES]
    public = {
        value
        for module in modules
        for name in set(module.__all__) & vars(module).keys()
        if inspect.isclass(value := vars(module)[name])
    }
    described: dict[int, str] = {}
    paragraphs = []
    for module in modules:
        lines = [f"module {module.__name__}"]
        for name in sorted(module.__all__):
            lines += _lines_of_name(module, name, described, public)
        paragraphs.append("\n".join(lines) + "\n")
    return "\n".join(paragraphs)


def _lines_of_name(
    module: ModuleType, name: str, described: dict[int, str], public: set[type]
) -> Iterator[str]:
    path = f"{module.__name__}.{name}"
    if module.__name__ in MADE_FROM_A_FRAMEWORK and name not in vars(module):
        yield f"{path}: made from a framework on first use"
        return
    value = getattr(module, name)
    if isinstance(value, ModuleType):
        yield f"{path}: module"
    elif not inspect.isclass(value) and not inspect.isroutine(value):
        yield f"{path}: {type(value).__name__}"
    elif id(value) in described:
        yield f"{path} = {described[id(value)]}"
    else:
        described[id(value)] = path
        if inspect.isclass(value):
            yield from _lines_of_class(value, path, public)
        else:
            yield f"{path}{_signature(value)}"


def _lines_of_class(cls: type, path: str, public: set[type]) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    kind = "dataclass" if dataclasses.is_dataclass(cls) else "class"
    yield f"{kind} {path}({bases})" if bases else f"{kind} {path}"
    in_constructor: set[str] = set()
    if issubclass(cls, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in cls)
        in_constructor = set(cls.__members__)
    elif _defines_constructor(cls):
        yield f"    {cls.__name__}{_signature(cls, returns=False)}"
        if dataclasses.is_dataclass(cls):  # the constructor's line says it all
            in_constructor = set(inspect.signature(cls).parameters)
    members: dict[str, Any] = {}
    annotations: dict[str, str] = {}
    for base in _described_with(cls, public):
        # Named tuples of Python 3.14 have theirs computed.
        written = vars(base).get("__annotations__") or inspect.get_annotations(base)
        annotations |= {name: _text(value) for name, value in written.items()}
        members |= vars(base)
    for name in sorted({*members, *annotations} - in_constructor):
        if not name.startswith("_") or name in SPECIAL:
            yield f"    {_member(name, members.get(name), annotations)}"


def _defines_constructor(cls: type) -> bool:
    ours = [base for base in cls.__mro__ if _is_ours(base)]
    is_protocol = getattr(cls, "_is_protocol", False)
    return not is_protocol and any({"__init__", "__new__"} & vars(base).keys() for base in ours)


def _described_with(cls: type, public: set[type]) -> list[type]:
    """The class and its internal bases, farthest first. A public base is described by itself."""
    inherited = {base for parent in cls.__mro__[1:] if parent in public for base in parent.__mro__}
    return [base for base in reversed(cls.__mro__) if _is_ours(base) and base not in inherited]


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "lockstep"


def _member(name: str, value: Any, annotations: dict[str, str]) -> str:
    if isinstance(value, staticmethod):
        return f"{name}{_signature(value.__func__)} (static method)"
    if isinstance(value, classmethod):
        return f"{name}{_signature(value.__func__)} (class method)"
    if isinstance(value, property | functools.cached_property):
        getter = value.fget if isinstance(value, property) else value.func
        returned = _text(inspect.signature(getter).return_annotation) if getter else "?"
        writable = isinstance(value, property) and value.fset is not None
        return f"{name}: {returned} ({'writable ' * writable}property)"
    if inspect.isroutine(value):
        return f"{name}{_signature(value)}"
    if inspect.isclass(value):
        return f"{name}: class"
    return f"{name}: {annotations.get(name, type(value).__name__)} (attribute)"


def _signature(function: Any, returns: bool = True) -> str:
    """``(name: annotation = default) -> annotation``, annotations as the source has them."""
    signature = inspect.signature(function)
    parts = []
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    for number, parameter in enumerate(signature.parameters.values()):
        if parameter.kind is parameter.KEYWORD_ONLY and not (
            {parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY} & set(kinds[:number])
        ):
            parts.append("*")
        prefix: dict[Any, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        text = prefix.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_text(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default)}"
        parts.append(text)
        if parameter.kind is parameter.POSITIONAL_ONLY and (
            parameter.kind not in kinds[number + 1 :]
        ):
            parts.append("/")
    arrow = ""
    if returns and signature.return_annotation is not signature.empty:
        arrow = f" -> {_text(signature.return_annotation)}"
    return f"({', '.join(parts)}){arrow}"


def _text(annotation: Any) -> str:
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, ForwardRef):  # in a named tuple
        return annotation.__forward_arg__
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__qualname__
    return re.sub(r" at 0x\w+", "", repr(value))


if __name__ == "__main__":
    FILE.write_text(public_api(), encoding="utf-8")
    print(f"{FILE}: renewed")
