"""Reading a run's directory: its journal, and which checkpoints exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lockstep.checkpoint import Checkpoint
from lockstep.errors import CheckpointError, StorageError
from lockstep.journal import check_version, parse_line, read_lines
from lockstep.journal.segments import read_journal
from lockstep.metrics import full_row
from lockstep.retention import CheckpointRecord
from lockstep.run_layout import JOURNAL_FILE
from lockstep.storage import Storage

__all__ = [
    "RunRecords",
    "address_from",
    "damage_named",
    "existing_checkpoints",
    "newest_run",
    "open_address",
    "open_checkpoint",
    "reported_metrics",
    "start_time",
]

_INSIDE = "./"
"""Begins an address inside the run's directory: a name alone is an uploaded checkpoint's."""
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What code that expects a record raises on something else."""


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Around code that uses what a file contains: what it cannot use is one sentence.

    Raises:
        StorageError: names the file and what is wrong with it.
    """
    try:
        yield
    except _DAMAGE as error:
        what = f"it has no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
        raise StorageError(
            f"{where} is not what lockstep writes ({what or type(error).__name__}); the file is "
            "damaged: replace it with a good copy."
        ) from error


def address_from(storage: Storage, checkpoint: Checkpoint) -> str:
    """How a run in ``storage`` records the place of a checkpoint that was not uploaded by it.

    ``./name`` in the run's own directory, which may be moved later; else a path or a URI.

    Raises:
        CheckpointError: the checkpoint is on another filesystem and was not given as a URI.
    """
    place = checkpoint.storage
    assert place is not None
    same = storage.same_filesystem(place)
    if not same and place.is_local:
        return Path(place.root).as_uri()
    if not same and "://" in place.uri:
        address, mark, query = place.uri.partition("?")
        return address.rstrip("/") + mark + query
    if same or _same_files(storage, place):
        path, own = place.root.lstrip("/"), storage.root.strip("/") + "/"
        return _INSIDE + path.removeprefix(own) if path.startswith(own) else place.root
    raise CheckpointError(
        f"{checkpoint!r} is on another filesystem than the run, so it would not be found again by "
        "its path; give Checkpoint a URI, or use SYNC or ASYNC."
    )


def _same_files(storage: Storage, place: Storage) -> bool:
    """Whether a path leads to the same files on two filesystems that are not equal objects.

    Two objects for the same store may differ: by a newer token, or after a fork.
    """
    from pyarrow.fs import FileSelector

    ours, theirs = storage.filesystem, place.filesystem
    if ours.type_name != theirs.type_name:
        return False
    selector = FileSelector(place.root, allow_not_found=True, recursive=True)
    try:
        found = [
            {(info.path, info.size, info.mtime_ns) for info in filesystem.get_file_info(selector)}
            for filesystem in (ours, theirs)
        ]
    except OSError:
        return False
    return bool(found[0]) and found[0] == found[1]


def open_checkpoint(storage: Storage, record: CheckpointRecord) -> Checkpoint:
    """The checkpoint of a record, of the class that was reported, for a run in ``storage``."""
    if record.uploaded:
        opened = Checkpoint.at(storage.child(record.name))
    else:
        opened = open_address(storage, record.name)
    return opened.as_kind(record.kind)


def open_address(storage: Storage, address: str) -> Checkpoint:
    """The checkpoint at an address of ``address_from``, for a run in ``storage``."""
    if address.startswith(_INSIDE):
        return Checkpoint.at(storage.child(address.removeprefix(_INSIDE)))
    if "://" in address:
        return Checkpoint(address)
    return Checkpoint(address, None if storage.is_local else storage.filesystem)


_BOUNDARIES = frozenset(("attempt", "failure", "attempt_stopped", "end", "restore"))


class RunRecords:
    """A run's journal, read once. Rows are parsed on demand: a journal may have a million."""

    def __init__(self, storage: Storage) -> None:
        self.run: dict[str, Any] = {}
        self.attempts: dict[int, dict[str, Any]] = {}
        self.checkpoints: dict[int, CheckpointRecord] = {}
        self._never_uploaded: set[str] = set()
        self.failure: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.guard: list[dict[str, Any]] = []
        """What the guard has found: report, rank, kind and text."""
        self.broken: dict[str, Any] | None = None
        """The step at which the guard has ended an attempt, if another attempt was to follow."""
        self.timeline: list[tuple[str, dict[str, Any]]] = []
        """The events that begin or end an attempt or a driver's work, in order."""
        self.last_report: bytes | None = None
        self._path = storage.path(JOURNAL_FILE)
        self._reports: list[tuple[int, bytes]] = []
        self._logs: list[tuple[int, bytes]] = []
        for numbered in enumerate(read_lines(read_journal(storage, JOURNAL_FILE)), 1):
            line = numbered[1]
            # By its first bytes, without parsing: nearly all lines are reports and logs.
            if line.startswith(b'{"event":"report"'):
                self._reports.append(numbered)
            elif line.startswith(b'{"event":"log"'):
                self._logs.append(numbered)
            else:
                record = self._parse(numbered)
                event = record["event"]
                if event in ("report", "log"):  # a line that another program has formatted
                    (self._reports if event == "report" else self._logs).append(numbered)
                else:
                    with damage_named(f"line {numbered[0]} of {self._path}"):
                        self._apply(record)
        self.rows = len(self._reports)
        if self._reports:
            self._parse(self._reports[-1])  # a damaged last row is reported here
            self.last_report = self._reports[-1][1]
        if not self.run:
            raise FileNotFoundError(
                f"{self._path} records no run; the driver may have been killed at its start."
            )

    @property
    def state(self) -> str:
        """How the run ended; ``"unfinished"`` if the driver died or still runs."""
        return str(self.end["state"]) if self.end else "unfinished"

    def reports(self) -> Iterator[dict[str, Any]]:
        """Every row, in order."""
        return map(self._parse, self._reports)

    def logs(self) -> Iterator[dict[str, Any]]:
        """Every batch of ``train.log()`` rows."""
        return map(self._parse, self._logs)

    def never_uploaded(self) -> set[str]:
        """The addresses of all checkpoints, kept or not, that the run did not upload."""
        rows = (self._parse(one) for one in self._reports if b'"checkpoint":"' in one[1])
        # A driver killed after the row may not have written the checkpoint's own record. The name
        # of an uploaded checkpoint has no slash.
        places = (str(row["checkpoint"]) for row in rows)
        return self._never_uploaded.union(place for place in places if "/" in place)

    def row(self, report: dict[str, Any]) -> dict[str, Any]:
        """A report as a row with the automatic keys."""
        with damage_named(f"a report in {self._path}"):
            return full_row(
                reported_metrics(report), self.run, self.attempts[report["attempt"]], report
            )

    def _parse(self, numbered: tuple[int, bytes]) -> dict[str, Any]:
        return _parse(numbered, self._path)

    def _apply(self, record: dict[str, Any]) -> None:
        event = record.pop("event")
        if event in _BOUNDARIES:
            self.timeline.append((event, record))
        if event == "run":
            check_version(record, self._path)
            self.run = record
        elif event == "attempt":
            self.attempts[record["attempt"]] = record
        elif event == "fall_back":
            self.attempts[record["attempt"]].update(record)
        elif event == "checkpoint":
            checkpoint = CheckpointRecord.of(record)
            self.checkpoints[checkpoint.id] = checkpoint
            if not checkpoint.uploaded:
                self._never_uploaded.add(checkpoint.name)
        elif event == "validated":
            known = self.checkpoints.get(record["id"])
            if known is not None:
                self.checkpoints[known.id] = known.validated(record)
        elif event == "delete":
            # By id: a later checkpoint may have the same name.
            self.checkpoints.pop(record["id"], None)
        elif event == "guard":
            self.guard.append(record)
        elif event == "failure":
            self.failure = record
            if "broken" in record:
                self.broken = record["broken"] if record["retry"] else None
        elif event == "restore":
            # The run continues: its earlier end does not count any more.
            self.run = {**self.run, **record}
            self.end = self.failure = None
        elif event == "end":
            self.end = record


def _parse(numbered: tuple[int, bytes], path: str) -> dict[str, Any]:
    number, line = numbered
    try:
        record = parse_line(line)
        if not isinstance(record.get("event"), str):
            raise ValueError("it names no event")
    except ValueError as error:
        raise StorageError(
            f"line {number} of {path} is not a record of a run ({error}); "
            "the file is damaged: replace it with a good copy, or remove the line."
        ) from error
    return record


def reported_metrics(report: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a report: rank 0's, or the metrics combined across ranks."""
    metrics: dict[str, Any] = report["reduced"] if "reduced" in report else report["ranks"][0]
    return metrics


def existing_checkpoints(
    storage: Storage, known: dict[int, CheckpointRecord]
) -> list[CheckpointRecord]:
    """The checkpoints that exist, by id.

    Storage decides, not the journal: a checkpoint is published first and recorded afterwards.
    """
    # What was never uploaded may be anywhere, so its existence is not checked.
    found = [record for record in known.values() if not record.uploaded]
    uploaded = {record.name: record for record in known.values() if record.uploaded}
    for name in storage.published(storage.listdir("")):
        if name in uploaded:
            found.append(uploaded[name])
        else:
            found.extend(_published_as(storage, name))
    return sorted(found, key=lambda record: record.id)


def _published_as(storage: Storage, name: str) -> list[CheckpointRecord]:
    """The checkpoint of this name; none if a user has copied another checkpoint there."""
    manifest = storage.manifest(name)
    with suppress(*_DAMAGE):
        record = CheckpointRecord.of(parse_line(manifest or b""))
        if record.name == name:
            return [record]
    return []


def newest_run(experiment: Storage) -> Storage:
    """The run of an experiment's directory that started last.

    Raises:
        FileNotFoundError: the directory contains no run.
    """
    runs: dict[float, Storage] = {}
    for name in experiment.listdir(""):
        run = experiment.child(name)
        if run.exists(JOURNAL_FILE):
            started = start_time(run)
            if started is not None:
                runs.setdefault(started, run)  # "run" comes before its copy "run.bak"
    if not runs:
        raise FileNotFoundError(
            f"{experiment.uri} is not the directory of a run: there is no {JOURNAL_FILE} with a "
            "run in it, nor in any directory in it."
        )
    return runs[max(runs)]


def start_time(run: Storage) -> float | None:
    """When a run started; None if its driver was killed before it recorded that."""
    head = b""
    for chunk in run.read_chunks(JOURNAL_FILE):
        # Only the first line is needed, and a journal on remote storage may be large.
        head += chunk
        if b"\n" in chunk:
            break
    for line in read_lines(head):
        with damage_named(f"line 1 of {run.path(JOURNAL_FILE)}"):
            return float(_parse((1, line), run.path(JOURNAL_FILE))["time"])
    return None
