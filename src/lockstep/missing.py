"""How a module of Ray's, or a name in one, that does not exist here says what to use instead.

A missing module is a small file that calls ``raise_missing_module``. A package with missing names
calls ``raise_missing_name`` from its ``__getattr__``. Nothing is installed into Python's import
system.
"""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["raise_missing_module", "raise_missing_name"]


def raise_missing_module(module: str, advice: str) -> NoReturn:
    """Raise the ImportError of a missing module: it names the replacement."""
    raise ImportError(f"{module} does not exist: {advice}.", name=module)


def raise_missing_name(package: str, name: str, advice: str | None, depth: int = 0) -> NoReturn:
    """Raise what a package's ``__getattr__`` has to raise for a name that it does not have.

    ``from package import name`` raises an ImportError that names the replacement. Any other
    look-up, such as ``hasattr``, gets the usual AttributeError.

    Args:
        package, name: what was asked for.
        advice: what to use instead; None: nothing is known of the name.
        depth: how many functions are between ``__getattr__`` and this one.
    """
    if advice is not None and _is_import_statement(depth):
        full = f"{package}.{name}"
        raise ImportError(f"{full} does not exist: {advice}.", name=full)
    text = f"module {package!r} has no attribute {name!r}"
    raise AttributeError(text if advice is None else f"{text}: {advice}.", name=name)


def _is_import_statement(depth: int) -> bool:
    """Whether a module's ``__getattr__`` was called by ``from … import …``.

    The import statement first asks with ``hasattr``, and drops the text of an AttributeError. So
    only an ImportError at that moment reaches the user.
    """
    # Between: this function, raise_missing_name, __getattr__.
    caller = sys._getframe(3 + depth)
    return caller.f_code.co_filename == "<frozen importlib._bootstrap>"
