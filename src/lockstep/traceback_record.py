"""A traceback as plain data, and again as a traceback that Python and IPython show as the original.

What they show of a frame comes from its code object: the file, the name, the first line of the
function, its arguments, and the columns of the expression that failed. So each frame is rebuilt
with a small code object that has the same of all of these.
"""

from __future__ import annotations

import inspect
import itertools
import linecache
import sys
from traceback import print_exception, walk_tb
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

__all__ = ["pack_traceback", "unpack_traceback"]

_FRAMES = 50
"""How many frames are kept at each end of a traceback. Endless recursion makes more."""
_SOURCE_LINES = 20
"""How many lines of a failed expression are kept, at most."""
_ARGUMENT_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_ENTRY_UNITS = 8
"""How many code units an entry of a line table can cover."""


class _Absent:
    """Stands for a local variable: its value stayed in the process of the original frame."""

    def __repr__(self) -> str:
        return "<not kept>"


class _Raised(Exception):
    pass


def pack_traceback(trace: TracebackType | None) -> list[dict[str, Any]]:
    """The frames, outermost first, as a list that JSON can hold. A long one loses its middle."""
    steps = []
    while trace is not None:
        steps.append(trace)
        trace = trace.tb_next
    if len(steps) > 2 * _FRAMES:
        steps[_FRAMES:-_FRAMES] = []
    return [_pack(step) for step in steps]


def unpack_traceback(frames: list[dict[str, Any]]) -> TracebackType | None:
    """The traceback of ``pack_traceback``'s frames."""
    trace = None
    for record in reversed(frames):
        made = _frame(record)
        trace = TracebackType(trace, made, made.f_lasti, record["line"])
    return trace


def _pack(step: TracebackType) -> dict[str, Any]:
    code = step.tb_frame.f_code
    line = step.tb_lineno
    end_line, columns = line, None
    if sys.version_info >= (3, 11):
        place = next(itertools.islice(code.co_positions(), step.tb_lasti // 2, None), None)
        if place is not None and None not in place and place[0] == line:
            end_line, columns = place[1], [place[2], place[3]]  # type: ignore[assignment]  # not None
    arguments = code.co_argcount + code.co_kwonlyargcount
    arguments += (code.co_flags & _ARGUMENT_FLAGS).bit_count()
    lines = linecache.getlines(code.co_filename, step.tb_frame.f_globals)
    return {
        "file": code.co_filename,
        "module": str(step.tb_frame.f_globals.get("__name__", "")),
        "name": code.co_name,
        "qualname": code.co_qualname if sys.version_info >= (3, 11) else code.co_name,
        "first_line": code.co_firstlineno,
        "line": line,
        "end_line": end_line,
        "columns": columns,
        "arguments": list(code.co_varnames[:arguments]),
        "counts": [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount],
        "flags": code.co_flags & _ARGUMENT_FLAGS,
        "source": lines[line - 1 : min(end_line, line + _SOURCE_LINES)],
    }


def _raise() -> None:
    raise _Raised


def _frame(record: dict[str, Any]) -> FrameType:
    """A frame that has ended, of a function like the original one."""
    positional, positional_only, keyword_only = record["counts"]
    names = record["arguments"]
    code = _raise.__code__.replace(
        co_filename=_file_to_show(record),
        co_name=record["name"],
        co_firstlineno=record["first_line"],
        co_argcount=positional,
        co_posonlyargcount=positional_only,
        co_kwonlyargcount=keyword_only,
        co_nlocals=len(names),
        co_varnames=tuple(names),
        co_flags=_raise.__code__.co_flags | record["flags"],
    )
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=record["qualname"], co_linetable=_line_table(code, record))
    scope = {"__name__": record["module"], "__file__": record["file"], "_Raised": _Raised}
    absent = _Absent()
    given = dict.fromkeys(names[positional : positional + keyword_only], absent)
    try:
        FunctionType(code, scope)(*[absent] * positional, **given)
    except _Raised as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
    return frame


def _line_table(code: CodeType, record: dict[str, Any]) -> bytes:
    """A line table in which every instruction of ``code`` is at the place of the failure.

    The format is that of CPython's Objects/locations.md, from Python 3.11 on.
    """
    units = len(code.co_code) // 2
    delta = record["line"] - record["first_line"]
    table = bytearray()
    while units:
        covered = min(units, _ENTRY_UNITS)
        kind = 13 if record["columns"] is None else 14
        table.append(0x80 | kind << 3 | covered - 1)
        table += _varint(-delta << 1 | 1 if delta < 0 else delta << 1)
        if record["columns"] is not None:
            table += _varint(record["end_line"] - record["line"])
            table += _varint(record["columns"][0] + 1)
            table += _varint(record["columns"][1] + 1)
        units -= covered
        delta = 0
    return bytes(table)


def _varint(number: int) -> bytes:
    table = bytearray()
    while number > 0x3F:
        table.append(0x40 | number & 0x3F)
        number >>= 6
    table.append(number)
    return bytes(table)


def _file_to_show(record: dict[str, Any]) -> str:
    """The file's name, under which ``linecache`` has the lines that were there at the failure."""
    file, line, kept = str(record["file"]), record["line"], record["source"]
    if not kept:
        return file
    linecache.checkcache(file)
    here = linecache.getlines(file)
    if here[line - 1 : line - 1 + len(kept)] == kept:
        return file
    # The file is another one by now, or is not on this machine.
    name = f"{file} (as it was then)" if here else file
    lines = linecache.getlines(name)[:]
    lines += ["\n"] * (line - 1 + len(kept) - len(lines))
    lines[line - 1 : line - 1 + len(kept)] = kept
    # Without a time of modification, linecache does not look for a file of this name.
    linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    if sys.excepthook is sys.__excepthook__:  # before Python 3.13 it reads files, not linecache
        sys.excepthook = print_exception
    return name
