"""``lockstep verify RUN``: run some steps of a run again, and say whether they are the same."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from lockstep.cli.command import Command, WholeNumber
from lockstep.cli.fork import split_step
from lockstep.cli.output import print_json
from lockstep.console.text import clean
from lockstep.journal.lookup import find_run

__all__ = ["COMMAND"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN[@STEP]",
        help="the run, as the other commands name it, and the training_iteration of one of its "
        "checkpoints (0: the beginning); by default the newest with a report after it",
    )
    parser.add_argument(
        "--steps", type=WholeNumber(1), default=10, help="how many reports; 10 by default"
    )
    parser.add_argument(
        "--ignore", metavar="NAME", action="append", default=[], help="do not compare this metric"
    )


def _verify(options: Namespace) -> int:
    from lockstep.testing.reproduce import verify_run

    text, step = split_step(options.run)
    run = find_run(text, pieces=True)
    filesystem = None if run.is_local else run.filesystem
    shown = verify_run(run.root, filesystem, step=step, steps=options.steps, ignore=options.ignore)
    if options.json:
        print_json({**shown._asdict(), "ok": shown.ok})
    else:
        print(clean(str(shown)))
    return 0 if shown.ok else 1


COMMAND = Command(
    "verify",
    "run some steps of a run again from a checkpoint; executes the code that is kept with it",
    (
        "lockstep verify -1                        the end of the newest run",
        "lockstep verify digits@1200 --steps 50    50 reports after step 1200",
    ),
    _arguments,
    _verify,
)
