"""What the text of a program says before the program runs."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable

__all__ = ["variables_set_by"]


def variables_set_by(source: bytes) -> set[str]:
    """The variables that a program changes in its own environment, as far as its text shows."""
    if b"environ" not in source and b"putenv" not in source:
        return set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if _is_environ(node.value):
                found |= _texts([node.slice])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called, of_environ = node.func.attr, _is_environ(node.func.value)
            one = called in ("putenv", "unsetenv") or (
                called in ("setdefault", "pop") and of_environ
            )
            found |= _texts(node.args[:1]) if one else set()
            if called == "update" and of_environ:
                found |= {word.arg for word in node.keywords if word.arg}
                for given in node.args:
                    found |= _texts(given.keys if isinstance(given, ast.Dict) else [])
    return found


def _is_environ(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", None)) in ("environ", "environb")


def _texts(nodes: Iterable[ast.expr | None]) -> set[str]:
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    return {os.fsdecode(value) for value in values if isinstance(value, str | bytes)}
