"""What is said of a run or an experiment: its state, workers, metrics and failure."""

from __future__ import annotations

import os
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from lockstep.config import CheckpointConfig, RunConfig
from lockstep.engine.attach import is_worker
from lockstep.error_record import summarise_error
from lockstep.journal import parse_line
from lockstep.journal.lock import is_locked
from lockstep.journal.lookup import is_own_directory, run_name
from lockstep.journal.records import RunRecords, reported_metrics
from lockstep.metrics import first_of, look_up
from lockstep.run_layout import JOURNAL_FILE, experiment_file
from lockstep.storage import Storage
from lockstep.train.driver.best import Best, BestSoFar

if TYPE_CHECKING:
    from lockstep.tune.experiment.records import ExperimentRecords

__all__ = [
    "RunFacts",
    "best_of",
    "best_trial",
    "diagnosis",
    "experiment_state",
    "experiment_summary",
    "hosts_of",
    "is_elsewhere",
    "is_running",
    "last_metrics",
    "may_run",
    "newest_attempt",
    "run_state",
    "run_summary",
    "spool_of",
    "started_of",
    "trial_statuses",
]


class RunFacts(Protocol):
    """What these functions need of a run: ``RunRecords``, or a journal that is followed."""

    run: dict[str, Any]
    attempts: dict[int, dict[str, Any]]
    failure: dict[str, Any] | None
    end: dict[str, Any] | None

    @property
    def state(self) -> str:
        """How the run ended; ``"unfinished"`` if the driver died or still runs."""
        ...


def newest_attempt(records: RunFacts) -> dict[str, Any] | None:
    """The record of the last start of the workers; None before the first."""
    return records.attempts[max(records.attempts)] if records.attempts else None


def spool_of(records: RunFacts) -> str | None:
    """The directory of a remote run's driver, if it is on this machine and this user's own."""
    directory = str(records.run.get("directory", ""))
    journal = os.path.join(directory, JOURNAL_FILE)
    return directory if is_own_directory(directory) and os.path.exists(journal) else None


def hosts_of(records: RunFacts) -> str:
    """The machines of the newest attempt's workers, for a sentence."""
    workers = (newest_attempt(records) or {}).get("workers", [])
    return ", ".join(sorted({str(worker["hostname"]) for worker in workers})) or "an unknown host"


def is_elsewhere(attempt: dict[str, Any]) -> bool:
    """Whether a worker was on another machine."""
    return any(worker["hostname"] != socket.gethostname() for worker in attempt["workers"])


def started_of(worker: dict[str, Any]) -> int:
    """When the worker's process started, in clock ticks."""
    return int(worker.get("started", 0))


def run_state(storage: Storage, records: RunFacts) -> str:
    """``running``, ``finished``, … and, after ``; ``, what there is to say of the state."""
    if records.end is not None:
        return records.state
    directory = storage.root if storage.is_local else spool_of(records)
    # The lock and the processes say whether a run is alive, never a clock.
    locked = False if directory is None else is_locked(os.path.join(directory, JOURNAL_FILE))
    attempt = newest_attempt(records)
    if locked:
        return "running" if attempt else "starting"
    if attempt is not None and is_elsewhere(attempt):
        return f"unfinished; look on {hosts_of(records)} whether it still runs"
    workers = attempt["workers"] if attempt else []
    if locked is None and any(is_worker(int(w["pid"]), started_of(w)) for w in workers):
        return "running"
    if "trial" in records.run:
        place = os.path.dirname(storage.uri)
        return f"unfinished; no driver runs{_advice(storage, f'Tuner.restore({place!r}).fit()')}"
    call = f"{records.run['trainer']}.restore({storage.uri!r}).fit()"
    return f"unfinished; no driver runs{_advice(storage, call)}"


def _advice(storage: Storage, call: str) -> str:
    """How to resume; not where that would execute what another user has written."""
    if storage.is_local and not is_own_directory(os.path.realpath(storage.root)):
        return "; its directory belongs to another user"
    return f"; resume it with {call}"


def experiment_state(records: ExperimentRecords) -> str:
    """The same for an experiment."""
    storage = records.storage
    if records.state == "finished":
        return records.state
    journal = os.path.join(storage.root, experiment_file("journal", records.number))
    if storage.is_local and is_locked(journal):
        return "running"
    if not storage.is_local and records.state == "unfinished":
        return "unfinished; look on the machine that started it whether it still runs"
    return records.state + _advice(storage, f"Tuner.restore({storage.uri!r}).fit()")


def may_run(storage: Storage, records: RunFacts) -> bool:
    """Whether a run has a driver now, or may have one on another machine."""
    state, _, note = run_state(storage, records).partition("; ")
    return state in ("running", "starting") or note.endswith("whether it still runs")


def is_running(summary: dict[str, Any]) -> bool:
    """Whether a summary is of something that has a driver now."""
    return summary["state"] in ("running", "starting")


def diagnosis(records: RunFacts) -> str | None:
    """The sentence that says why the newest failed attempt failed; None if the run finished."""
    failure = records.failure
    if failure is None or records.state == "finished":
        return None
    message = failure.get("message") or summarise_error(failure["errors"][0]["error"])
    return f"attempt {failure['attempt']}: {message}"


def last_metrics(run: RunRecords | None) -> dict[str, Any]:
    """What was reported last."""
    if run is None or run.last_report is None:
        return {}
    return reported_metrics(parse_line(run.last_report))


def best_of(records: RunRecords) -> Best | None:
    """The best value of the run's metric, as the panel chooses the metric.

    The end of a run records it. Only of a run that has not ended, or was restored, every row is
    parsed.
    """
    if records.end is not None and (kept := records.end.get("best")) is not None:
        metric, value, report = kept
        return Best(str(metric), float(value), int(report))
    scored = CheckpointConfig(**records.run["checkpoint_config"])
    best = BestSoFar(RunConfig(checkpoint_config=scored))
    for report in records.reports():
        best.update(report["index"], reported_metrics(report))
    return best.best


def run_summary(storage: Storage, records: RunRecords) -> dict[str, Any]:
    """A run as values for JSON and for a line of a table."""
    state, _, note = run_state(storage, records).partition("; ")
    attempt = newest_attempt(records)
    best = best_of(records)
    return {
        "kind": "run",
        "name": run_name(records.run),
        "experiment": str(records.run["experiment_name"]),
        "state": state,
        "note": note or None,
        "path": storage.uri,
        "started": float(records.run["time"]),
        "ended": float(records.end["time"]) if records.end else None,
        "attempts": len(records.attempts),
        "workers": len(attempt["workers"]) if attempt else 0,
        "reports": records.rows,
        "metrics": last_metrics(records),
        "best": best and best._asdict(),
        "diagnosis": diagnosis(records),
        "trial_id": str(records.run["trial_id"]),
        "parent": records.run.get("parent"),
    }


def trial_statuses(
    records: ExperimentRecords, runs: dict[str, RunRecords | None]
) -> dict[str, str]:
    """Each trial's status; the run's word counts where the driver was killed."""
    from lockstep.tune.experiment.records import final_status

    statuses = {}
    for trial in records.trials.values():
        status = final_status(trial, runs[trial.trial_id])
        statuses[trial.trial_id] = trial.status if status == "PENDING" else status
    return statuses


def best_trial(records: ExperimentRecords, runs: dict[str, RunRecords | None]) -> str | None:
    """The trial whose last report has the best metric of the search."""
    metric, mode = first_of(records.header.get("metric")), first_of(records.header.get("mode"))
    if metric is None or mode not in ("min", "max"):
        return None
    scores = {
        trial_id: value
        for trial_id, run in runs.items()
        if isinstance(value := look_up(last_metrics(run), metric), (int, float)) and value == value
    }
    pick = max if mode == "max" else min
    return pick(scores, key=scores.__getitem__) if scores else None


def experiment_summary(
    records: ExperimentRecords, runs: dict[str, RunRecords | None]
) -> dict[str, Any]:
    """An experiment as values for JSON and for a line of a table."""
    state, _, note = experiment_state(records).partition("; ")
    best = best_trial(records, runs)
    metric = first_of(records.header.get("metric"))
    value = None if best is None else look_up(last_metrics(runs[best]), str(metric))
    errors = [
        f"trial {trial.trial_id}: {trial.error}" for trial in records.trials.values() if trial.error
    ]
    return {
        "kind": "experiment",
        "name": str(records.header["name"]),
        "state": state,
        "note": note or None,
        "path": records.storage.uri,
        "started": float(records.header["time"]),
        "trials": dict(Counter(trial_statuses(records, runs).values())),
        "reports": sum(run.rows for run in runs.values() if run),
        "best": None if best is None else {"metric": metric, "value": value, "trial": best},
        "diagnosis": errors[0] + (f" (and {len(errors) - 1} more)" if errors[1:] else "")
        if errors
        else None,
    }
