"""``lockstep run``: reads its command line and runs the program.

Imports here stay cheap: they delay every start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from lockstep.warm.program import CODE, MODULE, SCRIPT, Program, end_by_interrupt, run_program

__all__ = ["launch"]

_USAGE = "usage: lockstep run [-v] (SCRIPT | -m MODULE | -c CODE | -) [ARGUMENT ...]"


class _WrongArguments(Exception):
    """The command line is wrong; the text says how."""


def launch(arguments: Sequence[str]) -> Any:
    """Run the program that the command line names; returns what to pass to ``sys.exit``."""
    try:
        program = _parse(arguments)
    except _WrongArguments as error:
        print(f"{_USAGE}\nlockstep run: {error}", file=sys.stderr)
        return 2
    _look_like_python(arguments)
    try:
        return run_program(program)
    except KeyboardInterrupt:
        end_by_interrupt()


def _parse(arguments: Sequence[str]) -> Program:
    rest = list(arguments)
    while rest and rest[0] == "-v":
        del rest[0]
    if not rest:
        raise _WrongArguments("name a script, or use -m MODULE or -c CODE.")
    first = rest.pop(0)
    if first in (MODULE, CODE):
        if not rest:
            raise _WrongArguments(f"{first} needs {'a module' if first == MODULE else 'code'}.")
        return Program(first, rest[0], tuple(rest[1:]))
    if first.startswith("-") and first != "-":
        raise _WrongArguments(
            f"{first} is no option of lockstep run; the script's own arguments follow the script."
        )
    return Program(SCRIPT, first, tuple(rest))


def _look_like_python(arguments: Sequence[str]) -> None:
    """Remove what this process has only because it was started as ``lockstep run``."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del sys.path[0]  # the directory of the command, or, with -m, the current one
    rest = list(arguments)
    while rest[0] == "-v":
        del rest[0]
    begin = len(sys.orig_argv) - len(arguments) - 1  # where "run" stands
    begin -= 2 if sys.orig_argv[begin - 2 : begin] == ["-m", "lockstep"] else 1
    sys.orig_argv[:] = [*sys.orig_argv[:begin], *rest]
