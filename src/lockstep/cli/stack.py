"""``lockstep stack RUN``: the Python stack of every rank of a running run, at this moment."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from lockstep.cli.command import Command, add_run
from lockstep.cli.output import print_json
from lockstep.console.text import clean
from lockstep.errors import LockstepError
from lockstep.journal.lookup import find_run, is_own_directory, run_name
from lockstep.journal.records import RunRecords, damage_named
from lockstep.observe.stacks import stacks_now
from lockstep.observe.state import hosts_of, spool_of
from lockstep.run_layout import JOURNAL_FILE
from lockstep.storage import Storage, open_storage

__all__ = ["COMMAND"]


def _stack(options: Namespace) -> int:
    from lockstep.train.driver.failure import name_ranks

    storage = find_run(options.run, pieces=True)
    with damage_named(storage.path(JOURNAL_FILE)):
        storage = _driver_storage(storage)
        records = RunRecords(storage)
        # Who joins a cluster trusts it: where it is must not be somebody else's word.
        own = is_own_directory(os.path.realpath(storage.root))
        alike, problems, pids = stacks_now(records, on_cluster=own)
    if options.json:
        groups = [
            {"ranks": ranks, "pids": [pids[rank] for rank in ranks], "stacks": list(lines)}
            for lines, ranks in alike.items()
        ]
        print_json({"run": run_name(records.run), "groups": groups, "problems": problems})
        return 1 if problems else 0
    for lines, ranks in alike.items():
        print(f"{name_ranks(ranks).capitalize()} (pid {', '.join(str(pids[r]) for r in ranks)})")
        print(*map(clean, lines), "", sep="\n")
    for rank, problem in sorted(problems.items()):
        print(f"lockstep stack: rank {rank}: {clean(problem)}.", file=sys.stderr)
    return 1 if problems else 0


def _driver_storage(storage: Storage) -> Storage:
    """Where a run's driver writes its journal, which is on this machine."""
    if storage.is_local:
        return storage
    records = RunRecords(storage)
    if records.end is not None:
        raise LockstepError(
            f"the run {run_name(records.run)} is not running: its state is {records.state!r}."
        )
    # The journal on remote storage is an older copy.
    spool = spool_of(records)
    if spool is None:
        raise LockstepError(
            f"the driver of the run {run_name(records.run)} does not run on this machine; its "
            f"workers were on {hosts_of(records)}. Run this command on the driver's machine."
        )
    return open_storage(spool)


COMMAND = Command(
    "stack",
    "the Python stack of every rank of a running run; of an experiment, its newest run",
    ("lockstep stack -1    where the ranks of the newest run are",),
    add_run,
    _stack,
)
