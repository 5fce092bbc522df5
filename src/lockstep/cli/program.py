"""The table of commands, and the ``main`` that runs one of them.

Exit codes: 0 done; 1 not done, with a sentence on stderr, or nothing found; 2 wrong arguments;
130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lockstep import __version__
from lockstep.cli import (
    compare,
    completion,
    doctor,
    env,
    fork,
    logs,
    ls,
    mcp,
    plot,
    port,
    replay,
    rm,
    run,
    show,
    stack,
    sync,
    ui,
    verify,
    warm,
    why,
)
from lockstep.console.text import clean
from lockstep.errors import LockstepError

__all__ = ["main"]

COMMANDS = (
    run.COMMAND,
    warm.COMMAND,
    ls.COMMAND,
    show.COMMAND,
    why.COMMAND,
    fork.COMMAND,
    verify.COMMAND,
    replay.COMMAND,
    logs.COMMAND,
    plot.COMMAND,
    compare.COMMAND,
    env.COMMAND,
    stack.COMMAND,
    ui.COMMAND,
    mcp.COMMAND,
    sync.COMMAND,
    port.COMMAND,
    doctor.COMMAND,
    rm.COMMAND,
    completion.COMMAND,
)

_EXIT_CODES = """exit codes:
  0 done    1 not done (a sentence is on stderr), or nothing found    2 wrong arguments
  130 Ctrl-C"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = _parser()
    completion.complete(parser)
    options = parser.parse_args(arguments)
    try:
        code: int = options.call(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (less, head) has closed the pipe. The flush at exit would fail, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (LockstepError, OSError, ValueError) as error:
        print(f"lockstep {options.chosen}: {clean(str(error))}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "lockstep",
        description="Start training scripts; look at runs, during and after them.",
        epilog=_EXIT_CODES,
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"lockstep {__version__}")
    # Not "name": an option of a command may be called so.
    commands = parser.add_subparsers(dest="chosen", required=True, metavar="COMMAND")
    for command in COMMANDS:
        examples = "\n".join(f"  {example}" for example in command.examples)
        one = commands.add_parser(
            command.name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog=f"examples:\n{examples}\n\n{command.exit_codes or _EXIT_CODES}",
            formatter_class=raw,
        )
        command.arguments(one)
        if command.has_json:
            text = "print one JSON document, for scripts"
            one.add_argument("--json", action="store_true", help=text)
        one.set_defaults(call=command.call)
    return parser
