"""``lockstep show RUN``: the progress of a run, or of an experiment and its trials."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.cli.command import Command, add_run
from lockstep.cli.output import print_facts, print_json, print_table
from lockstep.console.text import date, metrics_line, plural, shorten
from lockstep.journal.lookup import find_place, run_name
from lockstep.journal.records import RunRecords, damage_named, existing_checkpoints, newest_run
from lockstep.ledger import read_ledger
from lockstep.ledger.why import duration
from lockstep.metrics import first_of
from lockstep.observe.environment import environment_of, start_facts
from lockstep.observe.state import (
    best_trial,
    diagnosis,
    experiment_state,
    experiment_summary,
    last_metrics,
    newest_attempt,
    run_state,
    run_summary,
    trial_statuses,
)
from lockstep.run_layout import JOURNAL_FILE
from lockstep.state.files import StoredState
from lockstep.storage import Storage

if TYPE_CHECKING:
    from lockstep.tune.experiment.records import ExperimentRecords

__all__ = ["COMMAND"]

_MAX_TRIALS = 20
_MAX_ERRORS = 5


def _show(options: Namespace) -> int:
    from lockstep.tune.experiment.records import ExperimentRecords, experiment_numbers

    place = find_place(options.run, pieces=True)
    if StoredState.is_in(place):
        _show_state(place, options.json)
        return 0
    is_experiment = not place.exists(JOURNAL_FILE) and bool(experiment_numbers(place))
    if not is_experiment and not place.exists(JOURNAL_FILE):
        place = newest_run(place)
    with damage_named(f"what {place.uri} records"):
        if is_experiment:
            experiment = ExperimentRecords(place)
            runs = experiment.read_runs()
            if options.json:
                print_json(
                    {**experiment_summary(experiment, runs), "runs": _trials(experiment, runs)}
                )
            else:
                print_facts(list(_experiment_facts(experiment, runs)))
        else:
            records = RunRecords(place)
            if options.json:
                print_json(
                    {
                        **run_summary(place, records),
                        "config": records.run["config"],
                        "goodput": dict(read_ledger(records).goodput),
                        "environment": environment_of(place),
                    }
                )
            else:
                print_facts(list(_run_facts(place, records)))
    return 0


def _show_state(place: Storage, as_json: bool) -> None:
    """What is in a checkpoint of a ``train.State``. No tensor is read."""
    state = StoredState.read(place)
    entries = state.summary()
    total = sum(entry.nbytes for entry in entries)
    if as_json:
        found = [entry._asdict() for entry in entries]
        print_json({"path": place.uri, "ranks": list(state.ranks), "entries": found})
        return
    print_facts(
        [
            ("checkpoint", place.uri),
            ("state of", plural(len(state.ranks), "rank")),
            ("tensors", _size(total)),
        ]
    )
    rows = []
    for entry in entries:
        value = "" if entry.value is None else shorten(repr(entry.value), 40)
        tensors = f"{entry.tensors} tensors, {_size(entry.nbytes)}" if entry.tensors else value
        rows.append((entry.name, entry.kind, tensors))
    print()
    print_table(("entry", "kind", "content"), rows)


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"


def _run_facts(storage: Storage, records: RunRecords) -> Iterator[tuple[str, str]]:
    yield "run", f"{run_name(records.run)} in {records.run['experiment_name']}"
    yield "state", run_state(storage, records)
    yield "path", storage.uri
    if (parent := records.run.get("parent")) is not None:
        yield "parent", f"{parent['path']} at step {parent['step']}"
    if attempt := newest_attempt(records):
        size = plural(len(attempt["workers"]), "worker")
        last = "" if len(records.attempts) == 1 else "the last one "
        yield (
            "attempts",
            f"{len(records.attempts)}, {last}with {size} since {date(attempt['time'])}",
        )
    yield "reports", str(records.rows)
    if records.last_report is not None:
        yield "metrics", metrics_line(last_metrics(records))
        yield "time", _times(records)
    checkpoints = existing_checkpoints(storage, records.checkpoints)
    newest = f", the newest is {checkpoints[-1].name}" if checkpoints else ""
    yield "checkpoints", f"{len(checkpoints)}{newest}"
    yield from start_facts(storage)
    if (sentence := diagnosis(records)) is not None:
        yield "error", sentence


def _times(records: RunRecords) -> str:
    """Where the time went: the largest accounts. ``lockstep why`` has the rest."""
    ledger = read_ledger(records)
    largest = sorted(ledger.goodput.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{share:.0%} {name}" for name, share in largest[:4] if share >= 0.005)
    return f"{duration(ledger.wall_s)}: {parts}"


def _trials(
    records: ExperimentRecords, runs: dict[str, RunRecords | None]
) -> list[dict[str, object]]:
    return [
        {
            "trial_id": trial_id,
            "status": status,
            "reports": run.rows if (run := runs[trial_id]) else 0,
            "metrics": last_metrics(run),
            "config": run.run["config"] if run else None,
            "error": records.trials[trial_id].error,
        }
        for trial_id, status in trial_statuses(records, runs).items()
    ]


def _experiment_facts(
    records: ExperimentRecords, runs: dict[str, RunRecords | None]
) -> Iterator[tuple[str, str]]:
    storage, header = records.storage, records.header
    yield "experiment", str(header["name"])
    statuses = trial_statuses(records, runs)
    yield "state", experiment_state(records)
    yield "path", storage.uri
    counts = [f"{count} {status}" for status, count in Counter(statuses.values()).items()]
    planned = header.get("num_trials")
    of = f" of {planned}" if isinstance(planned, int) and planned > len(runs) else ""
    yield "trials", f"{len(runs)}{of}{': ' if counts else ''}{', '.join(counts)}"
    metric, mode = first_of(header.get("metric")), first_of(header.get("mode"))
    best = best_trial(records, runs)
    if best is not None:
        yield "best", f"trial {best}, the {'lowest' if mode == 'min' else 'highest'} {metric}"
    for number, (trial_id, run) in enumerate(runs.items()):
        if number == _MAX_TRIALS:
            yield "", f"… and {len(runs) - _MAX_TRIALS} more"
            break
        about = plural(run.rows if run else 0, "report")
        shown = last_metrics(run)
        config = metrics_line(run.run["config"]) if run else ""
        parts = (statuses[trial_id], about, metrics_line(shown), f"({config})" if config else "")
        yield "" if number else "trial", " ".join((trial_id, *filter(None, parts)))
    errors = [trial for trial in records.trials.values() if trial.error]
    for number, trial in enumerate(errors[:_MAX_ERRORS]):
        yield "" if number else "error", f"trial {trial.trial_id}: {trial.error}"
    if len(errors) > _MAX_ERRORS:
        yield "", f"… and {len(errors) - _MAX_ERRORS} more"


COMMAND = Command(
    "show",
    "the progress of a run, or of an experiment and its trials",
    (
        "lockstep show mnist               the run or the search with this name",
        "lockstep show -1                  the newest run",
        "lockstep show s3://bucket/mnist   a directory anywhere",
        "lockstep show …/checkpoint_000003 what a checkpoint of a train.State has",
    ),
    add_run,
    _show,
)
