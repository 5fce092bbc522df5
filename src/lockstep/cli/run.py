"""``lockstep run``: its help. What it does is in ``lockstep.warm.launch``, which imports less."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser, Namespace
from typing import Any

from lockstep.cli.command import Command

__all__ = ["COMMAND"]


def _arguments(parser: ArgumentParser) -> None:
    parser.usage = "lockstep run [-v] [--reload] (SCRIPT | -m MODULE | -c CODE | -) [ARGUMENT ...]"
    parser.add_argument("-v", action="store_true", help="say on stderr how the script is started")
    parser.add_argument(
        "--reload",
        action="store_true",
        help="when the script, or a module of yours that it imports, is saved: stop the run at its "
        "next report and continue it with the new code",
    )
    parser.add_argument("-m", metavar="MODULE", help="run a module, as python -m does")
    parser.add_argument("-c", metavar="CODE", help="run this code, as python -c does")
    parser.add_argument("program", metavar="SCRIPT", nargs="?", help="the script; -: from stdin")
    parser.add_argument("rest", metavar="ARGUMENT", nargs=REMAINDER, help="the script's arguments")


def _run(options: Namespace) -> Any:
    raise AssertionError("lockstep.cli.main calls launch() itself")  # pragma: no cover


COMMAND = Command(
    "run",
    "run a script as python does, from a warm process that has the libraries imported",
    (
        "lockstep run train.py --lr 0.1     instead of python train.py --lr 0.1",
        "lockstep run -m package.train      instead of python -m package.train",
        "lockstep run -v train.py           says how the script is started",
        "lockstep run --reload train.py     continues with the new code whenever a file is saved",
    ),
    _arguments,
    _run,
    has_json=False,
    exit_codes="exit codes:\n  the script's own    2 wrong arguments",
)
