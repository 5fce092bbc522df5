"""``lockstep run``: reads its command line, asks the warm server, or starts the program itself.

Imports here stay cheap: they delay every start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from lockstep import settings
from lockstep.warm.caller import capture
from lockstep.warm.client import FORWARDED, follow, start_script
from lockstep.warm.place import Place, Unavailable

TYPE_CHECKING = False  # see lockstep/__init__.py
if TYPE_CHECKING:
    from typing import Any

__all__ = ["launch"]

_USAGE = "usage: lockstep run [-v] [--reload] (SCRIPT | -m MODULE | -c CODE | -) [ARGUMENT ...]"


_Command = tuple[str, str, tuple[str, ...]]
"""The fields of a ``Program``."""


class _WrongArguments(Exception):
    """The command line is wrong; the text says how."""


def launch(arguments: Sequence[str]) -> Any:
    """Run the program that the command line names; returns what to pass to ``sys.exit``."""
    try:
        options, rest = _options(arguments)
        program = _parse(rest)
        if "--reload" in options:
            return _reload(arguments, program)
    except _WrongArguments as error:
        print(f"{_USAGE}\nlockstep run: {error}", file=sys.stderr)
        return 2
    verbose = "-v" in options
    _look_like_python(arguments, rest)
    # From here on every signal is for the script, and waits until the script can take it.
    mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)}
    try:
        place, environment = None, settings.environment()
        place = _find_place(environment)
        _start_warm(place, environment, program, mask, verbose)
    except Unavailable as reason:
        if verbose:
            print(f"lockstep run: ordinary start: {reason}.", file=sys.stderr)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # Only now, and only here: a client needs none of it.
    from lockstep.warm import modules
    from lockstep.warm.program import Program, end_by_interrupt, run_program

    if place is not None:
        modules.expect(place, (), environment)
    try:
        return run_program(Program(*program))
    except KeyboardInterrupt:
        end_by_interrupt()
    finally:
        modules.learn()


def _find_place(environment: dict[str, str]) -> Place:
    if settings.warm_is_off():
        raise Unavailable("LOCKSTEP_WARM=0")
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        raise Unavailable("warm starts need Linux")
    if os.getuid() != os.geteuid():
        raise Unavailable("this process has another user's rights")
    if _is_traced():
        raise Unavailable("a debugger, a profiler or a coverage tool runs in this process")
    try:
        return Place.of(environment, create=True)
    except OSError as error:
        raise Unavailable(f"{error}") from error


def _is_traced() -> bool:
    """Whether something was started with the interpreter that watches this process, by its .pth."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    tools = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return tools is not None and any(tools.get_tool(number) for number in range(6))


def _start_warm(
    place: Place, environment: dict[str, str], program: _Command, mask: set[int], verbose: bool
) -> None:
    """Become the client of a warm start, and never return; or raise Unavailable."""
    try:
        _check_foreground()
        values, files = capture(environment)
        try:
            sock, script = start_script(
                place,
                files,
                program=program,
                orig_argv=sys.orig_argv,
                blocked=sorted(mask),
                unbuffered=getattr(sys.stdout, "write_through", False),
                **values,
            )
        finally:
            os.close(files[0])
    except OSError as error:
        raise Unavailable(f"{error}") from error
    if verbose:
        print(f"lockstep run: warm start, process {script}.", file=sys.stderr)
    follow(sock, script, mask)


def _check_foreground() -> None:
    """In the background a script must stop when it reads from the terminal. Only a process of the
    terminal's own session does."""
    with contextlib.suppress(OSError):  # stdin is no terminal, or not this session's
        if os.tcgetpgrp(0) != os.getpgrp():
            raise Unavailable("this process is in the background of its terminal")


def _options(arguments: Sequence[str]) -> tuple[set[str], list[str]]:
    rest = list(arguments)
    given = set()
    while rest and rest[0] in ("-v", "--reload"):
        given.add(rest.pop(0))
    return given, rest


def _reload(arguments: Sequence[str], program: _Command) -> Any:
    from lockstep.warm.reload import supervise

    kind, target, _ = program
    if kind == "-c" or target == "-":
        raise _WrongArguments("--reload needs a script, or -m MODULE: a file that can change.")
    # The command as it was given, which starts the script once.
    begin = len(sys.orig_argv) - len(arguments)
    rest = list(arguments)
    rest.remove("--reload")
    try:
        return supervise(kind, target, [sys.executable, *sys.orig_argv[1:begin], *rest])
    except ValueError as error:
        raise _WrongArguments(str(error)) from None


def _parse(arguments: Sequence[str]) -> _Command:
    rest = list(arguments)
    if not rest:
        raise _WrongArguments("name a script, or use -m MODULE or -c CODE.")
    first = rest.pop(0)
    if first in ("-m", "-c"):
        if not rest:
            raise _WrongArguments(f"{first} needs {'a module' if first == '-m' else 'code'}.")
        return first, rest[0], tuple(rest[1:])
    if first.startswith("-") and first != "-":
        raise _WrongArguments(
            f"{first} is no option of lockstep run; the script's own arguments follow the script."
        )
    return "script", first, tuple(rest)


def _look_like_python(arguments: Sequence[str], rest: Sequence[str]) -> None:
    """Remove what this process has only because it was started as ``lockstep run``."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del sys.path[0]  # the directory of the command, or, with -m, the current one
    begin = len(sys.orig_argv) - len(arguments) - 1  # where "run" stands
    begin -= 2 if sys.orig_argv[begin - 2 : begin] == ["-m", "lockstep"] else 1
    sys.orig_argv[:] = [*sys.orig_argv[:begin], *rest]
