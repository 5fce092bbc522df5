"""The Python stacks of all ranks of a running run, asked for now. Equal ones are merged."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from lockstep.console.source_lines import source_line
from lockstep.console.stacks import first_dump, has_dump, parse_stacks, tidy_stacks
from lockstep.engine.attach import ask_workers
from lockstep.errors import LockstepError
from lockstep.journal.lookup import run_name
from lockstep.observe.state import RunFacts, hosts_of, newest_attempt, started_of

__all__ = ["Stacks", "stacks_now"]

ANSWER_S = 5.0
"""How long a worker may take to write its stacks."""


class Stacks(NamedTuple):
    """What the ranks answered."""

    groups: dict[tuple[str, ...], list[int]]
    """Lines of a stack → the ranks that have it."""
    problems: dict[int, str]
    """Rank → why there is no stack of it."""
    pids: dict[int, int]


def stacks_now(records: RunFacts, *, on_cluster: bool = False) -> Stacks:
    """Ask every worker of the newest attempt.

    Args:
        records: what the run has recorded.
        on_cluster: ask the workers on other machines, too, through the cluster that the run has
            recorded. This process joins the cluster for that moment, so the record must be
            one's own.

    Raises:
        LockstepError: the run does not run here, or no worker answers.
    """
    attempt = _newest_running(records)
    cluster = str(attempt.get("cluster", "")) if on_cluster else ""
    workers = {int(worker["rank"]): worker for worker in attempt["workers"]}
    here = [rank for rank in sorted(workers) if _is_here(workers[rank])]
    if not here and not cluster:
        raise LockstepError(
            f"the run {run_name(records.run)} has workers on {hosts_of(records)}, and this is "
            f"{socket.gethostname()}; run this command there."
        )
    asked = [_process(workers[rank]) for rank in here]
    answers = dict(zip(here, ask_workers(asked, has_dump, ANSWER_S), strict=True))
    elsewhere = {rank: worker for rank, worker in workers.items() if rank not in answers}
    answers |= _ask_cluster(cluster, elsewhere) if cluster else _not_asked(elsewhere)
    problems: dict[int, str] = {}
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, answer in sorted(answers.items()):
        if isinstance(answer, str):
            problems[rank] = answer
        elif stacks := tidy_stacks(parse_stacks(first_dump(answer)), source_line):
            alike.setdefault(tuple(stacks), []).append(rank)
        else:
            problems[rank] = (
                f"process {workers[rank]['pid']} has written nothing within {ANSWER_S:g} s; it "
                "may be stopped"
            )
    if all(isinstance(answer, str) for answer in answers.values()):
        problem = problems[min(problems)]
        raise LockstepError(f"no worker of the run {run_name(records.run)} answers: {problem}.")
    return Stacks(alike, problems, {rank: int(w["pid"]) for rank, w in workers.items()})


def _newest_running(records: RunFacts) -> dict[str, Any]:
    """The newest attempt of a run that may have workers."""
    name = run_name(records.run)
    if records.end is not None:
        raise LockstepError(f"the run {name} is not running: its state is {records.state!r}.")
    attempt = newest_attempt(records)
    if attempt is None:
        raise LockstepError(f"the workers of the run {name} are not up yet; try again.")
    return attempt


def _is_here(worker: dict[str, Any]) -> bool:
    return bool(worker["hostname"] == socket.gethostname())


def _process(worker: dict[str, Any]) -> tuple[int, int]:
    return int(worker["pid"]), started_of(worker)


def _not_asked(workers: Mapping[int, dict[str, Any]]) -> dict[int, list[str] | str]:
    return {
        rank: f"it is on {worker['hostname']}; run this command there, too"
        for rank, worker in workers.items()
    }


def _ask_cluster(cluster: str, workers: Mapping[int, dict[str, Any]]) -> dict[int, list[str] | str]:
    if not workers:
        return {}
    from lockstep.engine.ray import ask_nodes

    ranks_of: dict[str, list[int]] = {}
    for rank, worker in workers.items():
        ranks_of.setdefault(str(worker.get("node_id", "")), []).append(rank)
    asked = {node: [_process(workers[rank]) for rank in ranks] for node, ranks in ranks_of.items()}
    answers: dict[int, list[str] | str] = {}
    for node, found in ask_nodes(cluster, asked, has_dump, ANSWER_S).items():
        ranks = ranks_of[node]
        if isinstance(found, str):
            host = workers[ranks[0]]["hostname"]
            answers |= dict.fromkeys(ranks, f"it is on {host}, and {found}")
        else:
            answers |= dict(zip(ranks, found, strict=True))
    return answers
