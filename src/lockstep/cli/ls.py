"""``lockstep ls``: the runs and experiments in a directory, a line each."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from lockstep import settings
from lockstep.cli.command import Command, run_names
from lockstep.cli.output import print_json, print_table, short_time
from lockstep.console.text import format_value, shorten
from lockstep.errors import LockstepError, StorageError
from lockstep.journal.lookup import find_place, own_directories, own_spools
from lockstep.journal.records import RunRecords, damage_named
from lockstep.metrics import look_up
from lockstep.observe.state import experiment_summary, is_running, run_summary
from lockstep.run_layout import JOURNAL_FILE
from lockstep.storage import Storage, open_storage

__all__ = ["COMMAND"]

_MAX_NAME = 60
_SORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "age": lambda one: -one["started"],
    "name": lambda one: (one.get("experiment", one["name"]), one["name"]),
    "state": lambda one: one["state"],
    "reports": lambda one: -one["reports"],
}


def _arguments(parser: ArgumentParser) -> None:
    place = parser.add_argument(
        "place",
        metavar="PATH",
        nargs="?",
        help="a directory, a URI, or a name as the other commands accept it; by default the "
        f"results root ({settings.results_root()})",
    )
    vars(place)["completer"] = run_names
    parser.add_argument("--failed", action="store_true", help="only those that failed")
    parser.add_argument("--running", action="store_true", help="only those that run now")
    parser.add_argument("--tree", action="store_true", help="forks below their parents")
    parser.add_argument(
        "--sort", choices=sorted(_SORTS), default="age", help="by default the newest first"
    )


def _ls(options: Namespace) -> int:
    if options.place is None:
        # A list of names: this user's own, as everywhere where no path is given.
        root = open_storage(settings.results_root())
        places = [*(place for _, place in own_directories(root)), *own_spools()]
        where = root.uri
    else:
        place = find_place(options.place, pieces=True)
        where = place.uri
        if not place.is_directory():
            raise FileNotFoundError(f"there is no directory {where}.")
        inside = _has_runs(place)
        places = [place] if inside else [place.child(name) for name in place.listdir()]
    found = [
        one
        for one in _summaries(places, inside=options.place is not None and inside)
        if _wanted(one, options)
    ]
    found.sort(key=_SORTS[options.sort])
    if options.tree:
        found = _as_tree(found)
    if options.json:
        print_json(found)
    elif found:
        _print(found)
    else:
        kind = "failed " if options.failed else "running " if options.running else ""
        print(f"There is no {kind}run in {where}.")
    return 0


def _as_tree(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Forks after their parents, in the order that there is; ``depth`` says how deep."""
    known = {one["trial_id"] for one in found if "trial_id" in one}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for one in found:
        parent = (one.get("parent") or {}).get("trial_id")
        # A fork whose parent is not listed here is a root.
        children.setdefault(parent if parent in known else None, []).append(one)

    def below(trial_id: str | None, depth: int) -> Iterator[dict[str, Any]]:
        for one in children.pop(trial_id, ()):
            yield {**one, "depth": depth}
            if "trial_id" in one:
                yield from below(one["trial_id"], depth + 1)

    return list(below(None, 0))


def _wanted(summary: dict[str, Any], options: Namespace) -> bool:
    wanted = [is_running(summary)] * options.running
    wanted += [
        summary["state"] in ("failed", "damaged") or "ERROR" in summary.get("trials", ())
    ] * options.failed
    return not wanted or any(wanted)


def _has_runs(place: Storage) -> bool:
    """Whether it is a run, or has runs directly in it; else it is a root with experiments."""
    names = place.listdir()
    return JOURNAL_FILE in names or any(place.exists(f"{name}/{JOURNAL_FILE}") for name in names)


def _summaries(places: list[Storage], *, inside: bool) -> Iterator[dict[str, Any]]:
    """The runs and experiments in some directories; ``inside``: the trials of experiments, too."""
    for place in places:
        names = set(place.listdir()) if place.is_directory() else set()
        if JOURNAL_FILE in names:
            yield from _summary(place, _of_run)
            continue
        trials: set[str] = set()
        if any(name.endswith(".jsonl") for name in names):
            for summary in _summary(place, _of_experiment):
                trials = set(summary.pop("directories", ()))
                yield summary
        for name in sorted(names if inside else names - trials):
            run = place.child(name)
            if run.exists(JOURNAL_FILE):
                yield from _summary(run, _of_run)


def _summary(place: Storage, read: Callable[[Storage], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Nothing where there is none yet; a damaged one is a line like the others."""
    with suppress(FileNotFoundError):
        try:
            with damage_named(f"what {place.uri} records"):
                summary = read(place)
        except (LockstepError, StorageError) as error:
            summary = {
                "kind": "run",
                "name": os.path.basename(place.root),
                "state": "damaged",
                "path": place.uri,
                "started": 0.0,
                "reports": 0,
                "diagnosis": str(error),
            }
        yield summary


def _of_run(place: Storage) -> dict[str, Any]:
    return run_summary(place, RunRecords(place))


def _of_experiment(place: Storage) -> dict[str, Any]:
    from lockstep.tune.experiment.records import ExperimentRecords

    records = ExperimentRecords(place)
    directories = [trial.directory for trial in records.trials.values()]
    return {**experiment_summary(records, records.read_runs()), "directories": directories}


def _print(found: list[dict[str, Any]]) -> None:
    rows: list[list[str]] = []
    for one in found:
        rows.append(
            [
                one["state"],
                shorten(_title(one), _MAX_NAME),
                short_time(time.time() - one["started"]) if one["started"] else "",
                _workers(one),
                str(one["reports"]),
                _last(one),
                _best(one),
            ]
        )
        if one["diagnosis"] is not None:
            rows.append([one["diagnosis"]])
    print_table(
        ("STATE", "NAME", "AGE", "WORKERS", "REPORTS", "LAST", "BEST"),
        rows,
        numbers=("AGE", "REPORTS"),
    )


def _title(one: dict[str, Any]) -> str:
    name = f"{one['experiment']} {one['name']}" if "experiment" in one else one["name"]
    if not one.get("depth"):
        return str(name)
    return f"{'  ' * (one['depth'] - 1)}└ @{one['parent']['step']} {name}"


def _workers(one: dict[str, Any]) -> str:
    if "trials" in one:
        return (
            ", ".join(f"{count} {status}" for status, count in one["trials"].items()) or "no trial"
        )
    return str(one.get("workers") or "")


def _last(one: dict[str, Any]) -> str:
    metrics = one.get("metrics") or {}
    best = one.get("best")
    name = best["metric"] if best else next(iter(metrics), None)
    return "" if name is None or not metrics else f"{name}={format_value(look_up(metrics, name))}"


def _best(one: dict[str, Any]) -> str:
    best = one.get("best")
    if not best:
        return ""
    where = f"report {best['report']}" if "report" in best else f"trial {best['trial']}"
    return f"{best['metric']}={format_value(best['value'])} ({where})"


COMMAND = Command(
    "ls",
    "the runs and experiments below a directory: state, age, workers, metrics, why one failed",
    (
        "lockstep ls                        everything below the results root, newest first",
        "lockstep ls --failed               what failed, and why",
        "lockstep ls --tree                 forks below the runs that they were forked from",
        "lockstep ls mnist                  the runs or trials of one experiment",
        "lockstep ls s3://bucket/results    somewhere else",
        "lockstep ls --running --json       for a script",
    ),
    _arguments,
    _ls,
)
