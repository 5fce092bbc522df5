"""The ``lockstep`` command: inspect a run from another process.

    lockstep show RUN     the progress of a run
    lockstep stack RUN    the Python stack of every rank of a running run, at this moment

RUN is the directory or URI of a run, or of an experiment (for its newest run); or, below the
results root, the name of an experiment, or the name or trial id of a run.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from lockstep import __version__, settings
from lockstep.engine.attach import StackRequest, is_worker
from lockstep.error_record import summarise_error
from lockstep.errors import LockstepError
from lockstep.journal import parse_line
from lockstep.records import RunRecords, existing_checkpoints, newest_run, reported_metrics
from lockstep.redact import redact
from lockstep.run_layout import JOURNAL_FILE, SPOOL_PREFIX
from lockstep.storage import Storage, open_storage

__all__ = ["main"]

ANSWER_S = 5.0
"""How long a worker may take to write its stacks."""

_POLL_S = 0.005
_RUN_DIRECTORY = re.compile(r"(?P<name>.+_(?P<id>(?P<short>[0-9a-f]{5})_\d{5}))_.*")


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
        print(f"lockstep {options.name}: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("lockstep", description="Inspect a run from another process.")
    parser.add_argument("--version", action="version", version=f"lockstep {__version__}")
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    for name, function, text in (
        ("show", _show, "the progress of a run: state, attempts, metrics, checkpoints, error"),
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


# ------------------------------------------------------------------------------------------ finding


def _find_run(text: str) -> Storage:
    place = _find_place(text)
    return place if place.exists(JOURNAL_FILE) else newest_run(place)


def _find_place(text: str) -> Storage:
    root = open_storage(settings.results_root())
    if "://" in text or os.path.isdir(os.path.expanduser(text)):
        place = open_storage(text)
    elif not os.path.isabs(text) and ".." not in Path(text).parts and root.is_directory(text):
        place = root.child(text)
    else:
        found = next(chain(_runs_named(root, text), _remote_runs(text)), None)
        if found is None:
            raise FileNotFoundError(
                f"{redact(text)!r} is neither a directory nor a name or trial id below {root.uri}; "
                "give the run's directory."
            )
        place = found
    return place


def _runs_named(root: Storage, text: str) -> Iterator[Storage]:
    if not root.is_directory():
        return
    for name in root.listdir():
        experiment = root.child(name)
        for run in experiment.listdir() if root.is_directory(name) else ():
            match = _RUN_DIRECTORY.fullmatch(run)
            if match and text in (run, match["name"], match["id"], match["short"]):
                yield experiment.child(run)


def _remote_runs(text: str) -> Iterator[Storage]:
    """Runs on remote storage whose driver is on this machine, with a local journal."""
    for directory in Path(tempfile.gettempdir()).glob(f"{SPOOL_PREFIX}*"):
        storage = open_storage(directory)
        try:
            run = RunRecords(storage).run
        except (FileNotFoundError, LockstepError):
            continue
        if text in (run["experiment_name"], _name(run), run["trial_id"], run["trial_id"][:5]):
            yield storage


def _name(run: dict[str, Any]) -> str:
    return f"{run['trainer']}_{run['trial_id']}"


def _newest_attempt(records: RunRecords) -> dict[str, Any] | None:
    return records.attempts[max(records.attempts)] if records.attempts else None


# -------------------------------------------------------------------------------------------- sync


def _sync(text: str) -> int:
    from lockstep.trackers.sync import send_undelivered

    place = _find_place(text)
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

    records = _driver_records(_find_run(text))
    attempt = _check_running(records)
    pids: dict[int, int] = {worker["rank"]: worker["pid"] for worker in attempt["workers"]}
    problems: dict[int, str] = {}
    alike: dict[tuple[str, ...], list[int]] = {}
    with ExitStack() as open_requests:
        requests: dict[int, StackRequest] = {}
        for rank, pid in sorted(pids.items()):
            try:
                requests[rank] = open_requests.enter_context(StackRequest(pid, attempt["time"]))
            except LockstepError as error:
                problems[rank] = str(error)
        if not requests:
            raise LockstepError(
                f"no worker of the run {_name(records.run)} answers: {problems[min(problems)]}."
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
        print(*lines, "", sep="\n")
    for rank, problem in sorted(problems.items()):
        print(f"lockstep stack: rank {rank}: {problem}.", file=sys.stderr)
    return 1 if problems else 0


def _driver_records(storage: Storage) -> RunRecords:
    """The journal that a run's driver writes, which is on this machine."""
    records = RunRecords(storage)
    if storage.is_local or records.end is not None:
        return records
    # The journal on remote storage is an older copy.
    directory: str = records.run.get("directory", "")
    try:
        return RunRecords(open_storage(directory))
    except FileNotFoundError:
        raise LockstepError(
            f"the driver of the run {_name(records.run)} does not run on this machine; its workers "
            f"were on {_hosts(records)}."
        ) from None


def _check_running(records: RunRecords) -> dict[str, Any]:
    """The newest attempt of a run that may have workers on this machine."""
    name = _name(records.run)
    if records.end is not None:
        raise LockstepError(f"the run {name} is not running: its state is {records.state!r}.")
    attempt = _newest_attempt(records)
    if attempt is None:
        raise LockstepError(f"the workers of the run {name} are not up yet; try again.")
    if any(worker["hostname"] != socket.gethostname() for worker in attempt["workers"]):
        raise LockstepError(
            f"the run {name} has workers on {_hosts(records)}, and this is {socket.gethostname()}; "
            "run this command there."
        )
    return attempt


def _hosts(records: RunRecords) -> str:
    workers = (_newest_attempt(records) or {}).get("workers", [])
    return ", ".join(sorted({worker["hostname"] for worker in workers})) or "an unknown host"


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
    storage = _find_run(text)
    records = RunRecords(storage)
    for label, value in _facts(storage, records):
        print(f"{label + ':':<13}{value}")
    return 0


def _facts(storage: Storage, records: RunRecords) -> Iterator[tuple[str, str]]:
    from lockstep.console.text import clean, metrics_line

    yield "run", f"{_name(records.run)} in {records.run['experiment_name']}"
    yield "state", _state(storage, records)
    yield "path", storage.uri
    if attempt := _newest_attempt(records):
        workers = len(attempt["workers"])
        size = f"{workers} worker{'s' if workers > 1 else ''}"
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(attempt["time"]))
        last = "" if len(records.attempts) == 1 else "the last one "
        yield "attempts", f"{len(records.attempts)}, {last}with {size} since {began}"
    yield "reports", str(records.rows)
    if records.last_report is not None:
        yield "metrics", metrics_line(reported_metrics(parse_line(records.last_report)))
    checkpoints = existing_checkpoints(storage, records.checkpoints)
    newest = f", the newest is {checkpoints[-1].name}" if checkpoints else ""
    yield "checkpoints", f"{len(checkpoints)}{newest}"
    if records.failure is not None and records.state != "finished":
        failure = records.failure
        message = failure.get("message") or summarise_error(failure["errors"][0]["error"])
        yield "error", f"attempt {failure['attempt']}: {clean(message)}"


def _state(storage: Storage, records: RunRecords) -> str:
    attempt = _newest_attempt(records)
    if records.end is not None or attempt is None:
        return records.state
    if any(worker["hostname"] != socket.gethostname() for worker in attempt["workers"]):
        return f"unfinished; whether it runs can be seen on {_hosts(records)}"
    if any(is_worker(worker["pid"], attempt["time"]) for worker in attempt["workers"]):
        return "running"
    advice = f"{records.run['trainer']}.restore({storage.uri!r}).fit()"
    return f"unfinished; no worker runs; resume it with {advice}"
