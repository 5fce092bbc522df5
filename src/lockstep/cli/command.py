"""What a command of the command line is: its name, its help, its arguments, what it does."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import NamedTuple

from lockstep import settings

__all__ = ["Command", "add_run"]


class Command(NamedTuple):
    """One command. ``call`` returns the exit code; ``--json`` is added to the arguments."""

    name: str
    help: str
    examples: tuple[str, ...]
    """Command lines with what each does: ``"lockstep show -1    the newest run"``."""
    arguments: Callable[[ArgumentParser], None]
    call: Callable[[Namespace], int]
    has_json: bool = True
    exit_codes: str = ""
    """What ``--help`` says of them, where they are not those of the other commands."""


def add_run(parser: ArgumentParser, name: str = "run", *, nargs: str | None = None) -> None:
    """An argument that names a run or an experiment."""
    parser.add_argument(
        name,
        metavar="RUN" if name == "run" else name.upper(),
        nargs=nargs,
        help="a run's or an experiment's directory or URI; or, below the results root "
        f"({settings.results_root()}), its name, its trial id, or a piece of its name that only "
        "it has; -1 is the newest run, -2 the one before",
    )
