"""The pages of the API reference: one a module, from the docstrings of everything public.

A thing with several public names is described under the first of them, as in
``tests/public_api.txt``; its other names are listed on one page. The pages are written at each
build of the site and are not kept.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from scripts.public_api import MADE_FROM_A_FRAMEWORK, MODULES

INTRODUCTION = """\
API
===

Everything public, from its docstrings. A thing with several names is described once;
:doc:`aliases` lists the others.

.. toctree::
   :maxdepth: 1

"""

ALIASES = """\
Other names
===========

The same objects under the names that scripts for Ray import.

"""


def write(folder: Path) -> None:
    """Write every page into ``folder``; a file whose text is the same is left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    pages: dict[str, str] = {}
    aliases: list[str] = []
    described: dict[int, str] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        text, others = _page(module, described)
        aliases += others
        if text:
            pages[name] = text
    index = INTRODUCTION + "".join(f"   {name}\n" for name in [*pages, "aliases"])
    pages |= {"index": index, "aliases": ALIASES + "\n".join(aliases) + "\n"}
    for name, text in pages.items():
        file = folder / f"{name}.rst"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    for file in folder.glob("*.rst"):
        if file.stem not in pages:
            file.unlink()


def _page(module: ModuleType, described: dict[int, str]) -> tuple[str, list[str]]:
    """A module's page, empty if it has nothing of its own; lines for its names of other things."""
    own, aliases = [], []
    for name in sorted(module.__all__, key=str.lower):
        path = f"{module.__name__}.{name}"
        if module.__name__ in MADE_FROM_A_FRAMEWORK and name not in vars(module):
            own.append(f".. autoclass:: {path}\n   :members:\n")
            continue
        value = getattr(module, name)
        if isinstance(value, ModuleType) or not (
            inspect.isclass(value) or inspect.isroutine(value)
        ):
            continue
        if first := described.get(id(value)):
            aliases.append(f"- ``{path}``: :py:obj:`{first}`")
            continue
        described[id(value)] = path
        own.append(_directive(path, value))
    if not own:
        return "", aliases
    title = module.__name__
    sentence = (inspect.getdoc(module) or "").partition("\n\n")[0]
    head = f"{title}\n{'=' * len(title)}\n\n.. py:module:: {title}\n\n{sentence}\n\n"
    return head + "\n".join(own), aliases


def _directive(path: str, value: Any) -> str:
    if not inspect.isclass(value):
        return f".. autofunction:: {path}\n"
    if issubclass(value, BaseException):
        return f".. autoexception:: {path}\n   :show-inheritance:\n"
    if not value.__module__.startswith("lockstep"):  # described by its own library
        return f".. py:class:: {path}\n\n   ``{value.__module__}.{value.__qualname__}``\n"
    foreign = {
        base.__name__ for base in value.__mro__ if not base.__module__.startswith("lockstep")
    }
    inherited = ", ".join(sorted(foreign))
    return f".. autoclass:: {path}\n   :members:\n   :inherited-members: {inherited}\n"


def markdown() -> str:
    """All of it as one page of Markdown: signatures, then docstrings."""
    parts = ["# API: everything public\n"]
    described: set[int] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for member in sorted(module.__all__, key=str.lower):
            value = vars(module).get(member)
            if not (inspect.isclass(value) or inspect.isroutine(value)) or id(value) in described:
                continue
            described.add(id(value))
            parts += _markdown_of(f"{name}.{member}", value, "##")
            if inspect.isclass(value) and not issubclass(value, BaseException):
                for method in dir(value):
                    function = inspect.getattr_static(value, method)
                    function = getattr(function, "__func__", function)
                    if not method.startswith("_") and inspect.isfunction(function):
                        parts += _markdown_of(f"{member}.{method}", function, "###")
    return "\n".join(parts)


def _markdown_of(path: str, value: Any, heading: str) -> list[str]:
    try:
        signature = str(inspect.signature(value))
    except (TypeError, ValueError):
        signature = ""
    return [f"{heading} {path}\n", f"`{path}{signature}`\n", (inspect.getdoc(value) or "") + "\n"]
