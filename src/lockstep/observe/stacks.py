"""The Python stacks of all ranks of a running run, asked for now. Equal ones are merged."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from typing import Any, NamedTuple

from lockstep.console.source_lines import source_line
from lockstep.console.stacks import first_dump, is_complete, parse_stacks, tidy_stacks
from lockstep.engine.attach import StackRequest
from lockstep.errors import LockstepError
from lockstep.lookup import run_name
from lockstep.observe.state import RunFacts, hosts_of, newest_attempt, started_of

__all__ = ["Stacks", "stacks_now"]

ANSWER_S = 5.0
"""How long a worker may take to write its stacks."""

_POLL_S = 0.005


class Stacks(NamedTuple):
    """What the ranks answered."""

    groups: dict[tuple[str, ...], list[int]]
    """Lines of a stack → the ranks that have it."""
    problems: dict[int, str]
    """Rank → why there is no stack of it."""
    pids: dict[int, int]


def stacks_now(records: RunFacts) -> Stacks:
    """Ask every worker of the newest attempt; takes ``ANSWER_S`` at most.

    Raises:
        LockstepError: the run does not run here, or no worker answers.
    """
    workers = _check_running(records)["workers"]
    pids = {int(worker["rank"]): int(worker["pid"]) for worker in workers}
    started = {int(worker["rank"]): started_of(worker) for worker in workers}
    problems: dict[int, str] = {
        int(worker["rank"]): f"it is on {worker['hostname']}; run this command there, too"
        for worker in workers
        if worker["hostname"] != socket.gethostname()
    }
    alike: dict[tuple[str, ...], list[int]] = {}
    with ExitStack() as open_requests:
        requests: dict[int, StackRequest] = {}
        for rank, pid in sorted(pids.items()):
            if rank in problems:
                continue
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
    return Stacks(alike, problems, pids)


def _check_running(records: RunFacts) -> dict[str, Any]:
    """The newest attempt of a run that may have workers on this machine."""
    name = run_name(records.run)
    if records.end is not None:
        raise LockstepError(f"the run {name} is not running: its state is {records.state!r}.")
    attempt = newest_attempt(records)
    if attempt is None:
        raise LockstepError(f"the workers of the run {name} are not up yet; try again.")
    if all(worker["hostname"] != socket.gethostname() for worker in attempt["workers"]):
        raise LockstepError(
            f"the run {name} has workers on {hosts_of(records)}, and this is "
            f"{socket.gethostname()}; run this command there."
        )
    return attempt


def _stacks(request: StackRequest, deadline: float) -> list[str]:
    """A worker's stacks, formatted; empty if it writes none in time."""
    while True:
        dump = first_dump(request.lines())
        if is_complete(dump) or time.monotonic() > deadline:
            return tidy_stacks(parse_stacks(dump), source_line)
        time.sleep(_POLL_S)
