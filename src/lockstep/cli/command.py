"""What a command of the command line is: its name, its help, its arguments, what it does."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lockstep import settings
from lockstep.journal.lookup import own_directories
from lockstep.storage import open_storage

__all__ = ["Command", "WholeNumber", "add_run", "run_names"]


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
    argument = parser.add_argument(
        name,
        metavar="RUN" if name == "run" else name.upper(),
        nargs=nargs,
        help="a run's or an experiment's directory or URI; or, below the results root "
        f"({settings.results_root()}), its name, its trial id, or a piece of its name that only "
        "it has; -1 is the newest run, -2 the one before",
    )
    vars(argument)["completer"] = run_names  # where argcomplete looks for it


@dataclass(frozen=True)
class WholeNumber:
    """For ``type=``: a whole number of this range. Another one is a wrong argument."""

    least: int
    most: int | None = None

    def __call__(self, text: str) -> int:
        """The number that ``text`` is."""
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < self.least:
            raise ArgumentTypeError(f"{value} is less than {self.least}")
        if self.most is not None and value > self.most:
            raise ArgumentTypeError(f"{value} is greater than {self.most}")
        return value


def run_names(prefix: str, **_: Any) -> list[str]:
    """For the tab key: the experiments, runs or directories that a word may become."""
    if prefix.startswith((".", "/", "~")):
        from argcomplete.completers import DirectoriesCompleter

        return list(DirectoriesCompleter()(prefix))
    experiments = list(own_directories(open_storage(settings.results_root())))
    names = [name for name, _ in experiments if name.startswith(prefix)]
    if names or not prefix:
        return names
    return [run for _, place in experiments for run in place.listdir() if run.startswith(prefix)]
