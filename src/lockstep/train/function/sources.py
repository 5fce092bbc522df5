"""The source code of a training function: kept with its run, and compared when the run is resumed.

A restored run executes the function that was kept. The file may have been edited since: then the
user is warned, and tracebacks show the lines of the code that ran.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, zip_longest
from types import FunctionType
from typing import Any

from lockstep.redact import redact
from lockstep.train.function.serialize import local_modules

__all__ = [
    "changed_definitions",
    "changed_note",
    "differing_sources",
    "name_of",
    "register_sources",
    "sources_of",
    "used_sources",
]

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_DEPTH = 8
"""How many wrappers around a function are opened. An object may have any attribute."""
_LONGEST = 1 << 20
"""The longest file, in characters, that is kept."""


def sources_of(function: Callable[..., Any]) -> dict[str, str]:
    """File → source code, for what is pickled by value with the function. Without keys in URIs.

    A notebook's cells are files here, too.
    """
    found = _origin(function)
    modules = local_modules(function)
    known = ("__main__", *(module.__name__ for module in modules))
    if found is None or found[0].__module__ not in known:
        return {}  # of an installed package: pickled by reference
    inner, _ = found
    files = [inner.__code__.co_filename]
    if inner.__module__ == "__main__":  # each cell of a notebook is a file
        functions = [v for v in inner.__globals__.values() if isinstance(v, FunctionType)]
        # Functions imported into the notebook have files of their own, found below.
        files += [f.__code__.co_filename for f in functions if f.__module__ == "__main__"]
    files += [str(module.__file__) for module in modules]
    texts = {file: _lines(file) for file in dict.fromkeys(files)}
    return {file: text for file, text in texts.items() if 0 < len(text) <= _LONGEST}


def used_sources(texts: Mapping[str, str], function: Callable[..., Any]) -> dict[str, str]:
    """What a run keeps of ``sources_of``: the function, and what it uses.

    Of other files than the function's own these are definitions and imports. Other lines are
    empty: they may hold a password that the function never sees.
    """
    found = _origin(function)
    if found is None:
        return {}
    inner, qualname = found
    own = [file for file in texts if _is_own(file, inner)]
    used = _used(tuple(texts[file] for file in own), qualname)
    parts = {file: _definitions_only(text) for file, text in texts.items() if file not in own}
    return {**dict(zip(own, used, strict=True)), **parts}


def differing_sources(kept: Mapping[str, str]) -> dict[str, str]:
    """The texts of ``kept`` that differ from the files of these names, or have no file."""
    return {file: text for file, text in kept.items() if not _has_lines(_text(file), text)}


def register_sources(texts: Mapping[str, str]) -> None:
    """Let tracebacks show these lines instead of those in the files of the same names."""
    for file, text in texts.items():
        # Without a time of modification, linecache does not look at the file.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def name_of(function: Callable[..., Any]) -> str | None:
    """What a script calls the function, if that is clear: it is defined at the top of a module."""
    if isinstance(function, (FunctionType, type)) and function.__qualname__.isidentifier():
        return function.__qualname__
    return None


def changed_note(kept: Mapping[str, str], function: Callable[..., Any], call: str) -> str | None:
    """Warns that the code was edited since it was kept; ``call`` runs the new code."""
    changed = changed_definitions(kept, function)
    if not changed:
        return None
    names = f"{', '.join(changed[:5])}{', …' if len(changed) > 5 else ''}"
    return (
        f"The code has changed since this run was started ({names}). The code that was kept with "
        f"the run is used. To use the new code: {call}"
    )


def changed_definitions(kept: Mapping[str, str], function: Callable[..., Any]) -> list[str]:
    """What has changed, since ``kept``, of the function and of what it uses: names, then files.

    In the function's own file only the function counts, and what it uses of that file. Files that
    are not on this machine do not count; instead of notebook cells, what ``__main__`` has now.
    """
    found = _origin(function)
    if found is None:
        return []
    inner, qualname = found
    own = inner.__code__.co_filename
    files = {file: text for file in kept if (text := _text(file)) is not None}
    changed = []
    if own in files:
        before, now = _definitions([kept[own]]), _definitions([files[own]])
        changed = _changed(qualname, before, now)
    elif own in kept and inner.__module__ == "__main__":
        cells = _definitions(text for file, text in kept.items() if file not in files)
        changed = _changed(qualname, cells, {**cells, **_of_main(cells)})
    others = (
        file for file in files if file != own and not _same_definitions(kept[file], files[file])
    )
    return [*changed, *map(os.path.basename, others)]


def _is_own(file: str, function: FunctionType) -> bool:
    """Whether it is the function's file, or, for a notebook, one of its cells."""
    return file == function.__code__.co_filename or not os.path.isfile(file)


def _has_lines(text: str | None, kept: str) -> bool:
    if text is None:
        return False
    pairs = zip_longest(kept.splitlines(), text.splitlines())
    return all(line == now for line, now in pairs if line)


@lru_cache(maxsize=16)
def _used(texts: tuple[str, ...], qualname: str) -> list[str]:
    """The texts with the function and what it uses, directly or not; other lines are empty."""
    root, *path = qualname.replace("<locals>.", "").split(".")
    found = [_definitions([text]) for text in texts]
    kept: list[list[range]] = [[] for _ in texts]
    indented: list[list[ast.stmt]] = [[] for _ in texts]
    pending, seen = [root], {root}
    while pending:
        name = pending.pop()
        for place, lines in enumerate(kept):
            statement = found[place].get(name)
            if name == root:
                for inner in path:  # of a function around the function, the first lines
                    if isinstance(statement, ast.ClassDef):
                        break
                    if isinstance(statement, _DEFINITIONS):
                        lines.append(range(statement.lineno - 1, statement.body[0].lineno - 1))
                    statement = _inside(statement, [inner])
            if statement is None:
                continue
            lines.append(_range(statement))
            if statement.col_offset and (name != root or not path):
                indented[place].append(statement)
            used = _names_used(statement) - seen
            seen |= used
            pending += used
    return [_lines_of(*parts) for parts in zip(texts, kept, indented, strict=True)]


@lru_cache(maxsize=256)
def _definitions_only(text: str) -> str:
    kinds = (*_DEFINITIONS, ast.Import, ast.ImportFrom)
    found = [s for s in _statements(_parsed(text).body) if isinstance(s, kinds)]
    return _lines_of(text, map(_range, found), [s for s in found if s.col_offset])


def _names_used(statement: ast.stmt) -> set[str]:
    """The names that a statement takes from around it. A function's own variables are not."""
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    used = {node.id for node in names}
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        used -= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        used -= {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    return used


def _range(statement: ast.stmt) -> range:
    """The lines of a statement, with its decorators; the first line of a file is 0."""
    decorators = getattr(statement, "decorator_list", ())
    first = min([statement.lineno, *(node.lineno for node in decorators)])
    return range(first - 1, statement.end_lineno or first)


def _lines_of(text: str, ranges: Iterable[range], indented: Iterable[ast.stmt] = ()) -> str:
    """These lines where they are; every other line is empty.

    The line before each of the ``indented`` opens a block, so that the text can be parsed.
    """
    lines = text.splitlines()
    kept = [""] * len(lines)
    for index in chain.from_iterable(ranges):
        kept[index] = lines[index]
    for before in (_range(statement)[0] - 1 for statement in indented):
        kept[before] = kept[before] or "if True:"
    return "\n".join(kept).rstrip("\n")


def _origin(function: Callable[..., Any]) -> tuple[FunctionType, str] | None:
    """A function with the code, and the name of what counts: the function's, or its class's.

    It is looked for inside partials, decorators, bound methods and callable objects.
    """
    inner: Any = function
    for _ in range(_DEPTH):
        if callable(getattr(inner, "func", None)):
            inner = inner.func
    inner = inspect.unwrap(inner)
    inner = getattr(inner, "__func__", inner)
    if isinstance(inner, type):
        methods = (value for value in vars(inner).values() if isinstance(value, FunctionType))
        method = next(methods, None)
        return None if method is None else (method, inner.__qualname__)
    if not isinstance(inner, FunctionType):
        inner = type(inner).__call__
    return (inner, inner.__qualname__) if isinstance(inner, FunctionType) else None


def _text(file: str) -> str | None:
    if not os.path.isfile(file):
        return None
    return _lines(file)


def _lines(file: str) -> str:
    linecache.checkcache(file)
    return redact("".join(linecache.getlines(file)))


def _changed(
    qualname: str, before: Mapping[str, ast.stmt], now: Mapping[str, ast.stmt]
) -> list[str]:
    """The function, if it differs, and the names it uses, directly or not, that differ."""
    root, *path = qualname.replace("<locals>.", "").split(".")
    pending, seen, changed = [root], {root}, []
    while pending:
        name = pending.pop(0)
        old: ast.stmt | None = before.get(name)
        new: ast.stmt | None = now.get(name)
        if name == root:  # of what is around the function, nothing counts
            old, new = _inside(old, path), _inside(new, path)
        if old is None:  # a builtin, a parameter, a lambda
            continue
        if new is None or ast.dump(old) != ast.dump(new):
            changed.append(path[-1] if name == root and path else name)
        used = _names_used(old) - seen
        seen |= used
        pending += sorted(used)
    return changed


def _definitions(texts: Iterable[str]) -> dict[str, ast.stmt]:
    """Name → the statement that binds it, at the top level of a module."""
    found: dict[str, ast.stmt] = {}
    for text in texts:
        for statement in _statements(_parsed(text).body):
            if isinstance(statement, _DEFINITIONS):
                found[statement.name] = statement
            else:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        found[node.id] = statement
                    elif isinstance(node, ast.alias):
                        found[(node.asname or node.name).partition(".")[0]] = statement
    return found


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """The simple statements and the definitions, those in ``if``, ``try`` and ``with``, too."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _statements(ast.iter_child_nodes(node))
        elif isinstance(node, ast.stmt):
            yield node


def _of_main(names: Iterable[str]) -> dict[str, ast.stmt]:
    """Those of the names that ``__main__`` has now, as functions or classes of its own."""
    texts = []
    for name in names:
        value = getattr(sys.modules["__main__"], name, None)
        if isinstance(value, (FunctionType, type)) and value.__module__ == "__main__":
            with contextlib.suppress(OSError, TypeError):
                texts.append(inspect.getsource(value))
    return _definitions(map(textwrap.dedent, texts))


def _inside(statement: ast.stmt | None, path: list[str]) -> ast.stmt | None:
    """The definition at ``path`` in a definition."""
    for name in path:
        nested = ast.walk(statement) if statement is not None else ()
        statement = next(
            (each for each in nested if isinstance(each, _DEFINITIONS) and each.name == name), None
        )
    return statement


def _same_definitions(kept: str, text: str) -> bool:
    now = _definitions_only(text)
    return kept == now or ast.dump(_parsed(kept)) == ast.dump(_parsed(now))


_parsing = threading.Lock()
"""Python 3.11 counts the depth of two parses at once together, and raises a SystemError."""


def _parsed(text: str) -> ast.Module:
    try:
        with _parsing:
            return ast.parse(text)
    except (SyntaxError, ValueError):  # a file that is being edited, or magics of a notebook
        return ast.Module([ast.Expr(ast.Constant(text))], [])
