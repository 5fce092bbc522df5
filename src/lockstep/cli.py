"""The ``lockstep`` command: inspect a run from another process.

    lockstep show RUN     the progress of a run, or of an experiment and its trials
    lockstep stack RUN    the Python stack of every rank of a running run, at this moment

RUN is the directory or URI of a run or of an experiment; or, below the results root, the name of
an experiment, or the name or trial id of a run. For an experiment, ``stack`` takes its newest run.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from lockstep import __version__, settings
from lockstep.console.text import clean, metrics_line
from lockstep.engine.attach import StackRequest, is_worker
from lockstep.error_record import summarise_error
from lockstep.errors import LockstepError
from lockstep.journal import parse_line
from lockstep.lock import is_locked
from lockstep.lookup import find_place, find_run, is_own_directory, run_name
from lockstep.metrics import first_of, look_up
from lockstep.records import (
    RunRecords,
    damage_named,
    existing_checkpoints,
    newest_run,
    reported_metrics,
)
from lockstep.run_layout import JOURNAL_FILE, experiment_file
from lockstep.storage import Storage, open_storage

if TYPE_CHECKING:
    from lockstep.tune.experiment.records import ExperimentRecords

__all__ = ["main"]

ANSWER_S = 5.0
"""How long a worker may take to write its stacks."""

_POLL_S = 0.005
_MAX_TRIALS = 20
_MAX_ERRORS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, 1 for a failure, 2 for wrong arguments."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options.run)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (less, head) has closed the pipe. The flush at exit would fail, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (LockstepError, OSError, ValueError) as error:
        print(f"lockstep {options.name}: {clean(str(error))}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("lockstep", description="Inspect a run from another process.")
    parser.add_argument("--version", action="version", version=f"lockstep {__version__}")
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    for name, function, text in (
        ("show", _show, "the progress of a run, or of an experiment and its trials"),
        ("stack", _stack, "the Python stack of every rank of a running run"),
        ("sync", _sync, "send what trackers did not get before the run ended"),
    ):
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.add_argument(
            "run",
            metavar="RUN",
            help="a run's or an experiment's directory or URI, or its name or trial id below "
            f"the results root ({settings.results_root()})",
        )
        command.set_defaults(command=function)
    return parser


def _newest_attempt(records: RunRecords) -> dict[str, Any] | None:
    return records.attempts[max(records.attempts)] if records.attempts else None


# -------------------------------------------------------------------------------------------- sync


def _sync(text: str) -> int:
    from lockstep.trackers.sync import send_undelivered

    place = find_place(text)
    sent = False
    for sentence in send_undelivered(place):
        sent = True
        print(sentence, flush=True)
    if not sent:
        print(f"Trackers have everything of {place.uri}: nothing to send.")
    return 0


# ------------------------------------------------------------------------------------------- stack


def _stack(text: str) -> int:
    from lockstep.train.driver.failure import name_ranks

    storage = find_run(text)
    with damage_named(storage.path(JOURNAL_FILE)):
        records = _driver_records(storage)
        workers = _check_running(records)["workers"]
        pids = {int(worker["rank"]): int(worker["pid"]) for worker in workers}
        started = {int(worker["rank"]): _started(worker) for worker in workers}
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
    spool = _spool(records)
    if spool is None:
        raise LockstepError(
            f"the driver of the run {run_name(records.run)} does not run on this machine; its "
            f"workers were on {_hosts(records)}."
        )
    return RunRecords(open_storage(spool))


def _spool(records: RunRecords) -> str | None:
    """The directory of a remote run's driver, if it is on this machine and this user's own."""
    directory = str(records.run.get("directory", ""))
    journal = os.path.join(directory, JOURNAL_FILE)
    return directory if is_own_directory(directory) and os.path.exists(journal) else None


def _check_running(records: RunRecords) -> dict[str, Any]:
    """The newest attempt of a run that may have workers on this machine."""
    name = run_name(records.run)
    if records.end is not None:
        raise LockstepError(f"the run {name} is not running: its state is {records.state!r}.")
    attempt = _newest_attempt(records)
    if attempt is None:
        raise LockstepError(f"the workers of the run {name} are not up yet; try again.")
    if _is_elsewhere(attempt):
        raise LockstepError(
            f"the run {name} has workers on {_hosts(records)}, and this is {socket.gethostname()}; "
            "run this command there."
        )
    return attempt


def _hosts(records: RunRecords) -> str:
    workers = (_newest_attempt(records) or {}).get("workers", [])
    return ", ".join(sorted({str(worker["hostname"]) for worker in workers})) or "an unknown host"


def _is_elsewhere(attempt: dict[str, Any]) -> bool:
    return any(worker["hostname"] != socket.gethostname() for worker in attempt["workers"])


def _started(worker: dict[str, Any]) -> int:
    return int(worker.get("started", 0))


def _stacks(request: StackRequest, deadline: float) -> list[str]:
    """A worker's stacks, formatted; empty if it writes none in time."""
    from lockstep.console.source_lines import source_line
    from lockstep.console.stacks import first_dump, is_complete, parse_stacks, tidy_stacks

    while True:
        dump = first_dump(request.lines())
        if is_complete(dump) or time.monotonic() > deadline:
            return tidy_stacks(parse_stacks(dump), source_line)
        time.sleep(_POLL_S)


# -------------------------------------------------------------------------------------------- show


def _show(text: str) -> int:
    from lockstep.tune.experiment.records import ExperimentRecords, experiment_numbers

    place = find_place(text)
    is_experiment = not place.exists(JOURNAL_FILE) and bool(experiment_numbers(place))
    if not is_experiment and not place.exists(JOURNAL_FILE):
        place = newest_run(place)
    with damage_named(f"what {place.uri} records"):
        if is_experiment:
            facts = list(_experiment_facts(ExperimentRecords(place)))
        else:
            facts = list(_run_facts(place, RunRecords(place)))
    for label, value in facts:
        print(f"{label + ':' if label else '':<13}{clean(value)}")
    return 0


def _run_facts(storage: Storage, records: RunRecords) -> Iterator[tuple[str, str]]:
    yield "run", f"{run_name(records.run)} in {records.run['experiment_name']}"
    yield "state", _run_state(storage, records)
    yield "path", storage.uri
    if attempt := _newest_attempt(records):
        size = _count(len(attempt["workers"]), "worker")
        last = "" if len(records.attempts) == 1 else "the last one "
        yield (
            "attempts",
            f"{len(records.attempts)}, {last}with {size} since {_date(attempt['time'])}",
        )
    yield "reports", str(records.rows)
    if records.last_report is not None:
        yield "metrics", metrics_line(reported_metrics(parse_line(records.last_report)))
    checkpoints = existing_checkpoints(storage, records.checkpoints)
    newest = f", the newest is {checkpoints[-1].name}" if checkpoints else ""
    yield "checkpoints", f"{len(checkpoints)}{newest}"
    if records.failure is not None and records.state != "finished":
        failure = records.failure
        message = failure.get("message") or summarise_error(failure["errors"][0]["error"])
        yield "error", f"attempt {failure['attempt']}: {message}"


def _run_state(storage: Storage, records: RunRecords) -> str:
    if records.end is not None:
        return records.state
    directory = storage.root if storage.is_local else _spool(records)
    # The lock and the processes say whether a run is alive, never a clock.
    locked = False if directory is None else is_locked(os.path.join(directory, JOURNAL_FILE))
    attempt = _newest_attempt(records)
    if locked:
        return "running" if attempt else "starting"
    if attempt is not None and _is_elsewhere(attempt):
        return f"unfinished; whether it runs can be seen on {_hosts(records)}"
    workers = attempt["workers"] if attempt else []
    if locked is None and any(is_worker(int(w["pid"]), _started(w)) for w in workers):
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


def _experiment_facts(records: ExperimentRecords) -> Iterator[tuple[str, str]]:
    from lockstep.tune.experiment.records import final_status

    storage, header = records.storage, records.header
    yield "experiment", str(header["name"])
    runs = {trial.trial_id: records.read_run(trial) for trial in records.trials.values()}
    statuses = {}
    for trial in records.trials.values():
        status = final_status(trial, runs[trial.trial_id])
        statuses[trial.trial_id] = trial.status if status == "PENDING" else status
    yield "state", _experiment_state(records)
    yield "path", storage.uri
    counts = [f"{count} {status}" for status, count in Counter(statuses.values()).items()]
    planned = header.get("num_trials")
    of = f" of {planned}" if isinstance(planned, int) and planned > len(runs) else ""
    yield "trials", f"{len(runs)}{of}{': ' if counts else ''}{', '.join(counts)}"
    metric, mode = first_of(header.get("metric")), first_of(header.get("mode"))
    best = _best_trial(runs, metric, mode)
    if best is not None:
        yield "best", f"trial {best}, by the {mode} of {metric}"
    for number, (trial_id, run) in enumerate(runs.items()):
        if number == _MAX_TRIALS:
            yield "", f"… and {len(runs) - _MAX_TRIALS} more"
            break
        about = _count(run.rows if run else 0, "report")
        shown = _last_metrics(run)
        config = metrics_line(run.run["config"]) if run else ""
        parts = (statuses[trial_id], about, metrics_line(shown), f"({config})" if config else "")
        yield "" if number else "trial", " ".join((trial_id, *filter(None, parts)))
    errors = [trial for trial in records.trials.values() if trial.error]
    for number, trial in enumerate(errors[:_MAX_ERRORS]):
        yield "" if number else "error", f"trial {trial.trial_id}: {trial.error}"
    if len(errors) > _MAX_ERRORS:
        yield "", f"… and {len(errors) - _MAX_ERRORS} more"


def _experiment_state(records: ExperimentRecords) -> str:
    storage = records.storage
    if records.state == "finished":
        return records.state
    journal = os.path.join(storage.root, experiment_file("journal", records.number))
    if storage.is_local and is_locked(journal):
        return "running"
    if not storage.is_local and records.state == "unfinished":
        return "unfinished; whether it runs can be seen where it was started"
    return records.state + _advice(storage, f"Tuner.restore({storage.uri!r}).fit()")


def _best_trial(
    runs: dict[str, RunRecords | None], metric: str | None, mode: str | None
) -> str | None:
    if metric is None or mode not in ("min", "max"):
        return None
    scores = {
        trial_id: value
        for trial_id, run in runs.items()
        if isinstance(value := look_up(_last_metrics(run), metric), (int, float)) and value == value
    }
    pick = max if mode == "max" else min
    return pick(scores, key=scores.__getitem__) if scores else None


def _last_metrics(run: RunRecords | None) -> dict[str, Any]:
    if run is None or run.last_report is None:
        return {}
    return reported_metrics(parse_line(run.last_report))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _date(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
