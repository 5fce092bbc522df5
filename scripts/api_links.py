"""Links from the pages into the API reference: the code ``RunConfig`` leads to its entry there.

A page links each thing once, where it is named first. What could mean two things is not linked.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any

NAME = re.compile(r"([A-Za-z_][\w.]*)(?:\(.*\))?", re.DOTALL)
# Pages about lockstep itself, and lists of names.
WITHOUT = re.compile(
    r"docs/(?:reference/api/|decisions/|architecture$|compatibility$)|benchmarks/|CHANGELOG$"
)


def targets(objects: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What a page may write → the full name that it means.

    Args:
        objects: the full name and the kind (``"class"``, ``"method"``, …) of everything that the
            reference describes.
    """
    found: dict[str, set[str]] = {}
    for name, kind in objects:
        parts = name.split(".")
        shortest = 1 if kind in ("class", "exception", "function") and _is_clear(parts[-1]) else 2
        for count in range(shortest, len(parts) + 1):
            found.setdefault(".".join(parts[-count:]), set()).add(name)
    return {text: full.pop() for text, full in found.items() if len(full) == 1}


def _is_clear(name: str) -> bool:
    """Whether a name alone says what it is: ``RunConfig``, ``prepare_model``, but not ``log``."""
    return name[0].isupper() or "_" in name.strip("_")


def named_in(text: str, known: dict[str, str]) -> str | None:
    """The full name of what a piece of code names, with its arguments or without."""
    found = NAME.fullmatch(text)
    return known.get(found[1]) if found else None


def add(app: Any, doctree: Any, docname: str) -> None:
    """Link a page's inline code. Called by Sphinx when the links of the page are resolved."""
    from sphinx.util.nodes import make_refnode

    nodes: Any = importlib.import_module("docutils.nodes")  # it has no type information
    if app.builder.format != "html" or WITHOUT.match(docname):
        return
    entries = app.env.get_domain("py").objects
    known = targets((name, entry.objtype) for name, entry in entries.items() if not entry.aliased)
    linked: set[str] = set()
    for code in list(doctree.findall(nodes.literal)):
        name = named_in(code.astext(), known)
        if name is None or name in linked or isinstance(code.parent, nodes.reference | nodes.title):
            continue
        linked.add(name)
        entry = entries[name]
        link = make_refnode(
            app.builder, docname, entry.docname, entry.node_id, code.deepcopy(), name
        )
        code.replace_self(link)
