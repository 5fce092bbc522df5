"""``lockstep compare A B``: what differs between two runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.cli.command import Command, add_run
from lockstep.cli.output import print_json, print_table
from lockstep.console.text import format_value
from lockstep.journal.lookup import find_run
from lockstep.journal.records import RunRecords, damage_named
from lockstep.metrics import flatten
from lockstep.observe.environment import environment_of
from lockstep.observe.state import best_of, last_metrics, run_summary

__all__ = ["COMMAND"]

_MISSING = "-"


def _arguments(parser: ArgumentParser) -> None:
    add_run(parser, "a")
    add_run(parser, "b")


def _compare(options: Namespace) -> int:
    both = [_facts(text) for text in (options.a, options.b)]
    a, b = both
    config = _differences(a["config"], b["config"])
    environment = _differences(a["environment"], b["environment"])
    metrics = {
        key: [side["metrics"].get(key) for side in both] for key in {**a["metrics"], **b["metrics"]}
    }
    if options.json:
        runs = [side["summary"] for side in both]
        print_json({"runs": runs, "config": config, "metrics": metrics, "environment": environment})
        return 0
    names = [f"{side['summary']['experiment']} {side['summary']['name']}" for side in both]
    about = {
        key: [side["summary"][key] for side in both]
        for key in ("state", "workers", "attempts", "reports")
    }
    rows: list[list[str]] = []
    for title, values in (
        ("run", about),
        ("config that differs", config),
        ("metrics", metrics),
        ("environment that differs", environment),
    ):
        rows.append([f"{title}:" if values else f"{title}: nothing", "", ""])
        rows += [
            [f"  {key}", *(_MISSING if one is None else format_value(one) for one in pair)]
            for key, pair in values.items()
        ]
    print_table(("", *names), rows)
    return 0


def _facts(text: str) -> dict[str, Any]:
    storage = find_run(text, pieces=True)
    with damage_named(f"what {storage.uri} records"):
        records = RunRecords(storage)
        best = best_of(records)
        metrics = flatten(last_metrics(records))
        if best is not None:
            metrics[f"best {best.metric}"] = best.value
        environment = flatten(environment_of(storage) or {})
        for key in ("time", "command"):
            environment.pop(key, None)
        return {
            "summary": run_summary(storage, records),
            "config": flatten(records.run["config"]),
            "metrics": metrics,
            "environment": environment,
        }


def _differences(a: dict[str, Any], b: dict[str, Any]) -> dict[str, list[Any]]:
    return {key: [a.get(key), b.get(key)] for key in {**a, **b} if a.get(key) != b.get(key)}


COMMAND = Command(
    "compare",
    "two runs side by side: configs that differ, metrics, environments that differ",
    (
        "lockstep compare -2 -1            what changed since the run before",
        "lockstep compare mnist-a mnist-b --json",
    ),
    _arguments,
    _compare,
)
