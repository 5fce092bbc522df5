"""``lockstep stack RUN``: the Python stack of every rank of a running run, at this moment."""

from __future__ import annotations

import socket
import sys
import time
from argparse import Namespace
from contextlib import ExitStack
from typing import Any

from lockstep.cli.command import Command, add_run
from lockstep.cli.output import print_json
from lockstep.cli.state import hosts_of, is_elsewhere, newest_attempt, spool_of, started_of
from lockstep.console.text import clean
from lockstep.engine.attach import StackRequest
from lockstep.errors import LockstepError
from lockstep.lookup import find_run, run_name
from lockstep.records import RunRecords, damage_named
from lockstep.run_layout import JOURNAL_FILE
from lockstep.storage import Storage, open_storage

__all__ = ["COMMAND"]

ANSWER_S = 5.0
"""How long a worker may take to write its stacks."""

_POLL_S = 0.005


def _stack(options: Namespace) -> int:
    from lockstep.train.driver.failure import name_ranks

    storage = find_run(options.run, pieces=True)
    with damage_named(storage.path(JOURNAL_FILE)):
        records = _driver_records(storage)
        workers = _check_running(records)["workers"]
        pids = {int(worker["rank"]): int(worker["pid"]) for worker in workers}
        started = {int(worker["rank"]): started_of(worker) for worker in workers}
    problems: dict[int, str] = {}
    alike: dict[tuple[str, ...], list[int]] = {}
    with ExitStack() as open_requests:
        requests: dict[int, StackRequest] = {}
        for rank, pid in sorted(pids.items()):
            try:
                requests[rank] = open_requests.enter_context(StackRequest(pid, started[rank]))
            except LockstepError as error:
                problems[rank] = str(error)
        if not requests:
            raise LockstepError(
                f"no worker of the run {run_name(records.run)} answers: {problems[min(problems)]}."
            )
        deadline = time.monotonic() + ANSWER_S
        for rank, request in requests.items():
            if stacks := _stacks(request, deadline):
                alike.setdefault(tuple(stacks), []).append(rank)
            else:
                problems[rank] = (
                    f"process {pids[rank]} has written nothing within {ANSWER_S:g} s; it may be "
                    "stopped"
                )
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


def _driver_records(storage: Storage) -> RunRecords:
    """The journal that a run's driver writes, which is on this machine."""
    records = RunRecords(storage)
    if storage.is_local or records.end is not None:
        return records
    # The journal on remote storage is an older copy.
    spool = spool_of(records)
    if spool is None:
        raise LockstepError(
            f"the driver of the run {run_name(records.run)} does not run on this machine; its "
            f"workers were on {hosts_of(records)}."
        )
    return RunRecords(open_storage(spool))


def _check_running(records: RunRecords) -> dict[str, Any]:
    """The newest attempt of a run that may have workers on this machine."""
    name = run_name(records.run)
    if records.end is not None:
        raise LockstepError(f"the run {name} is not running: its state is {records.state!r}.")
    attempt = newest_attempt(records)
    if attempt is None:
        raise LockstepError(f"the workers of the run {name} are not up yet; try again.")
    if is_elsewhere(attempt):
        raise LockstepError(
            f"the run {name} has workers on {hosts_of(records)}, and this is "
            f"{socket.gethostname()}; run this command there."
        )
    return attempt


def _stacks(request: StackRequest, deadline: float) -> list[str]:
    """A worker's stacks, formatted; empty if it writes none in time."""
    from lockstep.console.source_lines import source_line
    from lockstep.console.stacks import first_dump, is_complete, parse_stacks, tidy_stacks

    while True:
        dump = first_dump(request.lines())
        if is_complete(dump) or time.monotonic() > deadline:
            return tidy_stacks(parse_stacks(dump), source_line)
        time.sleep(_POLL_S)


COMMAND = Command(
    "stack",
    "the Python stack of every rank of a running run; of an experiment, its newest run",
    ("lockstep stack -1    where the ranks of the newest run are",),
    add_run,
    _stack,
)
