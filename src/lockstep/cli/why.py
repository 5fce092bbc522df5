"""``lockstep why RUN``: where a run's time went, what cost the most, and what to do about it."""

from __future__ import annotations

import shutil
import textwrap
from argparse import Namespace
from typing import Any

from lockstep.cli.command import Command, add_run
from lockstep.cli.output import print_json
from lockstep.console.text import clean, plural
from lockstep.journal.lookup import find_run, run_name
from lockstep.journal.records import RunRecords, damage_named
from lockstep.ledger import Goodput, Ledger, read_ledger
from lockstep.ledger.why import Reason, duration, reasons

__all__ = ["COMMAND"]

_BAR = 40
_MOSTLY = 0.5
_UNSEEN = (
    "compute is everything that is not measured. A DataLoader's waits are measured if "
    "prepare_data_loader() has returned it; torch.profiler shows what the rest is."
)


def _why(options: Namespace) -> int:
    storage = find_run(options.run, pieces=True)
    with damage_named(f"what {storage.uri} records"):
        records = RunRecords(storage)
        ledger = read_ledger(records)
        found = reasons(ledger)
    if options.json:
        print_json(
            {
                "run": run_name(records.run),
                "path": storage.uri,
                "wall_s": ledger.wall_s,
                "goodput": dict(ledger.goodput),
                "attempts": [_attempt(one, ledger, number) for number, one in _attempts(ledger)],
                "reasons": [reason._asdict() for reason in found],
            }
        )
        return 0
    name = f"{records.run['experiment_name']} {run_name(records.run)}"
    _print(clean(name), ledger, found)
    return 0


def _attempts(ledger: Ledger) -> list[tuple[int, Goodput]]:
    return list(enumerate(ledger.goodput.attempts))


def _attempt(goodput: Goodput, ledger: Ledger, number: int) -> dict[str, Any]:
    return {
        "attempt": ledger.attempts[number].number,
        "wall_s": goodput.wall_s,
        "goodput": dict(goodput),
        "ranks": [dict(rank) for rank in goodput.ranks],
    }


def _print(name: str, ledger: Ledger, found: list[Reason]) -> None:
    goodput = ledger.goodput
    if not ledger.attempts:
        print(f"{name}: no worker was ever up, so no time was spent.")
        return
    ranks = plural(ledger.attempts[-1].size, "rank")
    attempts = plural(len(ledger.attempts), "attempt")
    print(f"{name}: {duration(ledger.wall_s)} on {ranks}, {attempts}.\n")
    shown = sorted(goodput.items(), key=lambda item: -item[1])
    for account, share in shown:
        if share >= 0.0005:
            bar = "█" * max(round(share * _BAR), 1)
            print(f"  {account:<14}{share:>6.1%}  {bar}")
    width = min(shutil.get_terminal_size().columns, 100)
    for number, reason in enumerate(found, 1):
        print()
        head = f"{number}. "
        _paragraph(f"{head}{reason.text}", width, len(head))
        _paragraph(f"   → {reason.advice}", width, 5)
    if not found:
        print("\nNothing but computing takes as much as 1 % of the time.")
    if goodput["compute"] >= _MOSTLY and not goodput["data"]:
        print()
        _paragraph(_UNSEEN, width, 0)


def _paragraph(text: str, width: int, indent: int) -> None:
    print(textwrap.fill(clean(text), width, subsequent_indent=" " * indent, break_long_words=False))


COMMAND = Command(
    "why",
    "where a run's time went, what cost the most, and what to do about it",
    (
        "lockstep why -1              the newest run, also while it runs",
        "lockstep why mnist --json    accounts and reasons for a script",
    ),
    add_run,
    _why,
)
