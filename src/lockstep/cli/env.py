"""``lockstep env RUN``: the versions, the commit, the command line and the hardware of a run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from lockstep.cli.command import Command, add_run
from lockstep.cli.output import print_facts, print_json
from lockstep.console.text import clean_lines
from lockstep.journal.lookup import find_run
from lockstep.journal.records import damage_named
from lockstep.observe.environment import diff_of, environment_facts, environment_of
from lockstep.run_layout import ENVIRONMENT_FILE

__all__ = ["COMMAND"]


def _arguments(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--diff",
        action="store_true",
        help="only the changes that were not committed, as git diff shows them",
    )


def _env(options: Namespace) -> int:
    run = find_run(options.run, pieces=True)
    environment = environment_of(run)
    if environment is None:
        raise FileNotFoundError(
            f"{run.uri} has no {ENVIRONMENT_FILE}: its environment was not recorded."
        )
    if options.json:
        print_json(environment)
    else:
        with damage_named(run.path(ENVIRONMENT_FILE)):
            if options.diff:
                print(clean_lines(diff_of(environment)), end="")
            else:
                print_facts(list(environment_facts(environment)))
    return 0


COMMAND = Command(
    "env",
    "what a run was started with: versions, git commit and diff, command line, hardware",
    (
        "lockstep env -1              of the newest run",
        "lockstep env -1 --diff       what was changed and not committed then",
        "lockstep env mnist --json    for a script",
    ),
    _arguments,
    _env,
)
