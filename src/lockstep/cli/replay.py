"""``lockstep replay RUN --step N``: go back to a step of a run, and look at its variables."""

from __future__ import annotations

import json
import os
import tempfile
from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.cli.command import Command, WholeNumber
from lockstep.cli.output import print_json
from lockstep.console.text import clean, shorten
from lockstep.journal.lookup import find_run
from lockstep.run_layout import scratch_prefix

__all__ = ["COMMAND"]

_MAX_VALUE = 100


class _Note:
    """Writes the variables to a file: the probe may run in another process."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, variables: dict[str, Any]) -> None:
        shown = {name: _describe(value) for name, value in variables.items()}
        with open(self._path, "w", encoding="utf-8") as file:
            json.dump({name: text for name, text in shown.items() if text}, file)


def _describe(value: Any) -> str:
    if callable(value) and not hasattr(value, "state_dict"):
        return ""
    text = " ".join(repr(value).split())
    shape = getattr(value, "shape", None)
    if shape is not None and len(text) > _MAX_VALUE:
        text = f"{type(value).__name__} of shape {tuple(shape)}, {getattr(value, 'dtype', '')}"
    return str(shorten(text, _MAX_VALUE))


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run, as the other commands name it")
    parser.add_argument(
        "--step", type=WholeNumber(1), required=True, help="the training_iteration to go back to"
    )
    parser.add_argument(
        "--rank", type=WholeNumber(0), default=0, help="whose variables; 0 by default"
    )
    parser.add_argument(
        "--pdb", action="store_true", help="open the debugger there, on this terminal"
    )
    parser.add_argument(
        "--ignore", metavar="NAME", action="append", default=[], help="do not compare this metric"
    )


def _replay(options: Namespace) -> int:
    from lockstep.testing.reproduce import replay

    run = find_run(options.run, pieces=True)
    filesystem = None if run.is_local else run.filesystem
    with tempfile.TemporaryDirectory(prefix=scratch_prefix("replay")) as directory:
        path = os.path.join(directory, "variables.json")
        shown = replay(
            run.root,
            filesystem,
            step=options.step,
            rank=options.rank,
            probe=None if options.pdb else _Note(path),
            pdb=options.pdb,
            ignore=options.ignore,
        )
        variables: dict[str, str] = {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                variables = json.load(file)
    if options.json:
        print_json({**shown._asdict(), "ok": shown.ok, "variables": variables})
        return 0 if shown.ok else 1
    width = max(map(len, variables), default=0)
    for name, text in variables.items():
        print(clean(f"{name:{width}}  {text}"))
    print(clean(str(shown)))
    return 0 if shown.ok else 1


COMMAND = Command(
    "replay",
    "go back to a step of a run, with the same data and random numbers; executes its code",
    (
        "lockstep replay digits --step 1234             the variables of rank 0 there",
        "lockstep replay digits --step 1234 --rank 3    those of rank 3",
        "lockstep replay digits --step 1234 --pdb       the debugger, after that report",
    ),
    _arguments,
    _replay,
)
