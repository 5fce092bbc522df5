"""One run: its identity, its directory, its journal and its checkpoints."""

from __future__ import annotations

import glob
import json
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any

from lockstep import settings
from lockstep.checkpoint import Checkpoint
from lockstep.config import CheckpointConfig, CheckpointUploadMode, RunConfig
from lockstep.console.logs import LineSplitter
from lockstep.console.text import shorten, without_controls
from lockstep.engine.base import WorkerInfo
from lockstep.errors import StorageError
from lockstep.journal import Journal, is_driven
from lockstep.metrics import first_result, full_row, look_up
from lockstep.records import RunRecords, existing_checkpoints, open_address, open_checkpoint
from lockstep.result import Result
from lockstep.retention import CheckpointRecord, surplus
from lockstep.run_layout import (
    JOURNAL_FILE,
    LOG_DIRECTORY,
    SNAPSHOT_PREFIX,
    TRAINER_FILE,
    entry_of,
    is_numbered,
    log_file,
    run_directory,
    snapshot_prefix,
    spool_prefix,
)
from lockstep.storage import Storage, open_storage
from lockstep.train.datasets import merge_positions
from lockstep.train.driver.events import Notice, Phase, Save
from lockstep.train.driver.failure import WorkerFailure, first_cause
from lockstep.train.protocol import Report
from lockstep.train.reduction import combine

__all__ = ["Run", "RunPlace", "experiment_storage"]

_TAIL_BYTES = 1 << 16
_TAIL_WIDTH = 400


@dataclass(frozen=True)
class RunPlace:
    """Where a trial's run lies and what it is called: chosen by the experiment it belongs to."""

    storage: Storage
    identity: Mapping[str, Any]
    """trial_id, experiment_id, experiment_tag, experiment_name, and ``trial``, the experiment's."""


class Run:
    """A run's books. Used from the driver's thread, except where a method says so.

    On a local filesystem ``directory`` is the run's own directory. On a remote one it is a
    temporary directory whose small files ``sync`` copies over; checkpoints go there directly.
    """

    def __init__(self, storage: Storage, record: dict[str, Any], *, restored: bool) -> None:
        self.storage = storage
        self.restored = restored
        self.is_protected: Callable[[CheckpointRecord], bool] = lambda _: False
        """Whether somebody else is to go on from a checkpoint, so that it stays for now."""
        self._stale: set[str] = set()
        self._lost: StorageError | None = None
        self._newest_journal = b""
        self._copied: dict[str, tuple[int, int]] = {}
        if not storage.is_local:
            _clear_dead_spools()
        with ExitStack() as undo:
            self._spool = None if storage.is_local else tempfile.mkdtemp(prefix=spool_prefix())
            undo.callback(self._remove_spool)
            if restored and self._spool is not None:
                self._fetch(self._spool)
            self.directory = self._spool or storage.root
            self._journal = Journal(os.path.join(self.directory, JOURNAL_FILE))
            undo.callback(self._journal.close)
            # Read only now: until it was ours, another process may have been writing it.
            self._begin(record, RunRecords(storage) if restored else None)
            self._resources = undo.pop_all()

    def _begin(self, record: dict[str, Any], past: RunRecords | None) -> None:
        storage = self.storage
        self.record = {**(past.run if past else {}), **record}
        self.trial_id: str = self.record["trial_id"]
        self.trainer_name: str = self.record["trainer"]
        self.experiment_name: str = self.record["experiment_name"]
        self.name: str = self.record.get("name") or f"{self.trainer_name}_{self.trial_id}"
        self.checkpoint_config = CheckpointConfig(**self.record["checkpoint_config"])
        self._started = time.perf_counter()
        self.checkpoints: list[CheckpointRecord] = []
        self._users: set[str] = set()
        self.rows = 0
        self._attempts = 0
        if past is not None:
            storage.sweep()
            self.checkpoints = existing_checkpoints(storage, past.checkpoints)
            for place in past.never_uploaded():
                self._users |= _entries(storage, place)
            self._stale -= self.taken_names()
            for name in filter(is_numbered, sorted(self._stale)):
                self.clear_stage(name)
            self.rows = past.rows
            self._attempts = max(past.attempts, default=0)
        self.iteration = 0
        self.last_metrics: dict[str, Any] = {}
        self.data_wait: float | None = None
        self._last_record: dict[str, Any] = {}
        self._rows: dict[str, dict[str, Any]] = {}
        self._journal.append("restore" if past else "run", **record, directory=self.directory)
        self._attempt: dict[str, Any] = {}
        self._attempt_started = 0.0
        self._attempt_rows = 0
        self._total_before = 0.0
        self._last_report = 0.0

    @classmethod
    def create(
        cls,
        trainer_name: str,
        run_config: RunConfig,
        config: Mapping[str, Any],
        place: RunPlace | None = None,
    ) -> Run:
        """A new run in a directory of its own; ``place``: in that one, with that identity."""
        now = time.time()
        if place is not None:
            if _has_run(place.storage):
                raise StorageError(
                    f"{place.storage.uri} is the directory of another run; give this one another."
                )
            place.storage.make_directory("")
            record = {
                "version": 1,
                **place.identity,
                "trainer": trainer_name,
                "config": dict(config),
                "checkpoint_config": asdict(run_config.checkpoint_config),
                "time": now,
            }
            return cls(place.storage, record, restored=False)
        date = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now))
        trial_id = f"{uuid.uuid4().hex[:5]}_00000"
        experiment_name = run_config.name or f"{trainer_name}_{date}"
        experiment = experiment_storage(run_config, experiment_name)
        storage = experiment.child(run_directory(trainer_name, trial_id, "0", now))
        storage.make_directory("")
        record = {
            "version": 1,
            "trial_id": trial_id,
            "experiment_id": uuid.uuid4().hex,
            "experiment_tag": "0",
            "experiment_name": experiment_name,
            "trainer": trainer_name,
            "config": dict(config),
            "checkpoint_config": asdict(run_config.checkpoint_config),
            "time": now,
        }
        return cls(storage, record, restored=False)

    @classmethod
    def reopen(cls, storage: Storage, run_config: RunConfig, config: Mapping[str, Any]) -> Run:
        """Go on with a run, whatever ended it."""
        record = {
            "config": dict(config),
            "checkpoint_config": asdict(run_config.checkpoint_config),
            "restored": time.time(),
        }
        return cls(storage, record, restored=True)

    def past(self) -> dict[str, Any]:
        """What the state machine must know of what happened before."""
        newest = self.newest_checkpoint()
        return {
            "attempt": self._attempts + 1,
            "rows": self.rows,
            "safe_rows": newest.index if newest else 0,
            "next_checkpoint_id": newest.id + 1 if newest else 0,
            "committed": self.taken_names(),
        }

    def taken_names(self) -> frozenset[str]:
        """Names that no new checkpoint may get. What users put there before is theirs for ever."""
        return frozenset({*(record.name for record in self.checkpoints), *self._users})

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._started

    def begin_attempt(self, attempt: int, workers: Sequence[WorkerInfo], warmup: float) -> None:
        """The workers are up."""
        if attempt > 1:
            self._clear_snapshots()
        newest = self.newest_checkpoint()
        self.iteration = 0 if newest is None else newest.iteration
        self._total_before = 0.0 if newest is None else newest.trained_s
        self._attempt_rows = 0
        self._attempt_started = self._last_report = time.perf_counter()
        self._attempt = self._journal.append(
            "attempt",
            attempt=attempt,
            workers=[worker._asdict() for worker in workers],
            warmup_time=warmup,
            time_before=self._total_before,
            time=time.time(),
        )

    def first_result(self) -> dict[str, Any]:
        """What ``trial.last_result`` holds before the first report."""
        return first_result(self.record, self._attempt)

    def record_report(self, reports: Sequence[Report], checkpoint: str | None) -> None:
        """Journal one row."""
        now = time.perf_counter()
        self.rows += 1
        self.iteration += 1
        self._attempt_rows += 1
        lead = reports[0]
        metrics = combine(reports)
        self.last_metrics = metrics
        also: dict[str, Any] = {} if lead.reduce is None else {"reduced": metrics}
        if lead.data is not None:
            also["data_wait"] = [report.data.waited for report in reports if report.data]
            self.data_wait = max(also["data_wait"])
        place = checkpoint and (_location(reports) or checkpoint)
        self._last_record = self._journal.append(
            "report",
            index=self.rows,
            attempt=self._attempt["attempt"],
            attempt_index=self._attempt_rows,
            iteration=self.iteration,
            time=time.time(),
            time_this_iter=now - self._last_report,
            time_since_start=now - self._attempt_started,
            worker_time=int(lead.time),
            worker_time_this_iter=lead.time_this_iter,
            checkpoint=place,
            ranks=[report.metrics for report in reports],
            **also,
        )
        self._last_report = now
        if checkpoint is not None:
            self._rows[checkpoint] = self.last_row()

    def last_row(self) -> dict[str, Any]:
        """The newest row with its automatic keys."""
        return full_row(self.last_metrics, self.record, self._attempt, self._last_record)

    def record_logs(self, rank: int, rows: list[str]) -> None:
        """Journal ``train.log()`` rows."""
        self._journal.append_logs(rank, self._attempt["attempt"], rows)

    def describe_checkpoint(self, save: Save) -> CheckpointRecord:
        """What is to be published, with its score."""
        lead = next(r for r in save.reports if r is not None and r.checkpoint is not None)
        assert lead.checkpoint is not None
        metrics = self._rows.pop(save.name, {})
        if lead.checkpoint.of_last_row and self._attempt_rows:
            metrics = self.last_row()
        attribute = self.checkpoint_config.checkpoint_score_attribute
        score = lead.checkpoint.score
        if score is None and attribute is not None:
            value = look_up(metrics, attribute)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                score = float(value)
        return CheckpointRecord(
            id=save.id,
            name=lead.checkpoint.location or save.name,
            index=save.report_number,
            score=score,
            metrics=metrics,
            timestamp=int(time.time()),
            uploaded=save.mode is not CheckpointUploadMode.NO_UPLOAD,
            iteration=self.iteration - (self.rows - save.report_number),
            trained_s=self._total_before + time.perf_counter() - self._attempt_started,
            positions=merge_positions(save.reports),
        )

    def publish(self, record: CheckpointRecord) -> None:
        """The atomic step after which the checkpoint exists. May run in another thread."""
        # A run that goes on from this checkpoint has its row, and knows what is a user's.
        self._sync_journal()
        if record.uploaded:
            manifest = json.dumps(asdict(record), default=repr).encode()
            self.storage.publish(record.name, manifest)

    def committed(self, record: CheckpointRecord) -> list[CheckpointRecord]:
        """Journal a published checkpoint; returns those that may be deleted now."""
        self._journal.append("checkpoint", **asdict(record))
        self.checkpoints.append(record)
        return self._forget_surplus(ended=False)

    def clear_stage(self, name: str) -> None:
        """Delete what a driver that was killed has left of a checkpoint with this name."""
        if name in self._stale:
            self._stale.remove(name)
            self.storage.discard(name)

    def discard(self, name: str, *, later: bool = False) -> None:
        """Delete what was saved of a checkpoint that will never be published.

        ``later``: when its name is used again, or the run is restored.
        """
        self._rows.pop(name, None)
        if later:
            self._stale.add(name)
        else:
            self.storage.discard(name)

    def delete(self, record: CheckpointRecord) -> None:
        """Delete an old checkpoint's files. May run in another thread."""
        if record.uploaded:
            self.storage.unpublish(record.name)

    def open_checkpoint(self, record: CheckpointRecord) -> Checkpoint:
        """A committed checkpoint for users."""
        return open_checkpoint(self.storage, record)

    def open_reported(self, reports: Sequence[Report], name: str) -> Checkpoint:
        """The checkpoint of a row; it may not be committed yet."""
        place = _location(reports)
        if place is not None:
            return open_address(self.storage, place)
        return Checkpoint.at(self.storage.child(name))

    def newest_checkpoint(self) -> CheckpointRecord | None:
        """What a new attempt starts from."""
        return max(self.checkpoints, key=lambda record: record.id, default=None)

    def record_failure(
        self, attempt: int, failures: Sequence[WorkerFailure], message: str, *, retry: bool
    ) -> None:
        """Journal why an attempt ended: in one sentence, and the errors, the first cause first."""
        cause = first_cause(tuple(failures))
        ordered = [cause, *(failure for failure in failures if failure is not cause)]
        errors = [{"rank": failure.rank, "error": failure.error} for failure in ordered]
        self._journal.append(
            "failure",
            attempt=attempt,
            message=message,
            errors=errors,
            retry=retry,
            time=time.time(),
        )

    def record_attempt_stopped(self, attempt: int, notice: Notice, size: int | None) -> None:
        """Journal that an attempt stopped on a notice; ``size``: of the next one."""
        self._journal.append(
            "attempt_stopped",
            attempt=attempt,
            kind=notice.kind,
            rank=notice.rank,
            next_size=size,
            time=time.time(),
        )

    def log_tail(self, rank: int, lines: int = 10) -> list[str]:
        """The last lines a rank printed, of a progress bar what it last showed."""
        try:
            with open(os.path.join(self.directory, log_file(rank)), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL_BYTES))
                data = file.read()
        except OSError:
            return []
        if size > _TAIL_BYTES and b"\n" in data:
            data = data.partition(b"\n")[2]  # the first line is cut
        splitter = LineSplitter()
        printed = [*splitter.feed(data), *splitter.close()]
        shown = [shorten(without_controls(line), _TAIL_WIDTH) for line in printed if line.strip()]
        return shown[-lines:]

    def end(self, phase: Phase, *, flush: bool = True) -> StorageError | None:
        """Journal the end and clear away what was not published; returns why if that failed.

        ``flush=False``: ``flush`` is called later, so that the end survives a power cut, too.
        """
        failed = self._lost
        self._clear_snapshots()
        try:
            if failed is None:
                # Whoever has not finished may go on, and needs something to go on from.
                for record in self._forget_surplus(ended=phase is Phase.FINISHED):
                    self.delete(record)
                self.storage.sweep()
        except StorageError as error:
            failed = error
        self._journal.append("end", state=phase.value, time=time.time())
        if flush:
            self._journal.flush()
        return failed

    def flush(self) -> None:
        """Make the journal survive a power cut. May run in another thread."""
        self._journal.flush()

    def hand_over(self) -> None:
        """Copy the small files to remote storage for the last time.

        Raises:
            StorageError: that failed; it says where they are kept instead.
        """
        if self._spool is None:
            return
        try:
            if self._lost is not None:
                raise self._lost
            self.sync()
        except StorageError as error:
            spool, self._spool = self._spool, None
            raise StorageError(f"{error} The run's records are kept in {spool!r}.") from error

    def lose_storage(self, error: StorageError) -> None:
        """Storage does not answer: ask it for nothing more. ``hand_over`` says so."""
        self._lost = error

    def sync(self) -> None:
        """Copy the small files that have changed to remote storage. May run in another thread."""
        if self._spool is None:
            return
        self._sync_journal()
        for name, path in _spooled(self._spool):
            with suppress(FileNotFoundError):  # it was there a moment ago
                version = _version(path)
                if self._copied.get(name) != version:
                    self.storage.put(name, path)
                    self._copied[name] = version

    def close(self) -> None:
        """Release the journal and the temporary directory. Idempotent."""
        self._resources.close()

    def result(self) -> Result:
        """What the directory says, after the end.

        Raises:
            StorageError: it is not there any more.
        """
        try:
            return Result(self.storage)
        except FileNotFoundError as error:
            raise StorageError(
                f"{self.storage.uri} is gone, and the run's records with it: leave the directory "
                "alone while the run goes on."
            ) from error

    def _fetch(self, spool: str) -> None:
        """Get the small files of a run on remote storage, to go on with them."""
        for name in self.storage.listdir(""):
            if name == LOG_DIRECTORY or not self.storage.is_directory(name):
                if name != TRAINER_FILE:
                    self.storage.get(name, os.path.join(spool, name))
            else:
                self._stale.add(name)
        self._copied = {name: _version(path) for name, path in _spooled(spool)}

    def _sync_journal(self) -> None:
        if self._spool is None:
            return
        with open(os.path.join(self._spool, JOURNAL_FILE), "rb") as file:
            self._newest_journal = file.read()
        written = None
        # A write that was given up may get through after the next one: then that is repeated.
        while written is not self._newest_journal:
            written = self._newest_journal
            # Replaced as a whole: a driver killed meanwhile leaves the old one.
            self.storage.write(JOURNAL_FILE, written)

    def _remove_spool(self) -> None:
        if self._spool is not None:
            shutil.rmtree(self._spool, ignore_errors=True)

    def _clear_snapshots(self) -> None:
        """Delete what workers that are gone had still to upload."""
        _remove_beginning(self.directory, SNAPSHOT_PREFIX)
        _remove_beginning(tempfile.gettempdir(), snapshot_prefix(self.trial_id, self.storage.root))

    def _forget_surplus(self, *, ended: bool) -> list[CheckpointRecord]:
        old = surplus(self.checkpoints, self.checkpoint_config, ended=ended)
        gone = [record for record in old if not self.is_protected(record)]
        for record in gone:
            self.checkpoints.remove(record)
            self._journal.append("delete", id=record.id, name=record.name)
        return gone


def _location(reports: Sequence[Report]) -> str | None:
    """Where the checkpoint of a row lies that is not uploaded."""
    return next((r.checkpoint.location for r in reports if r.checkpoint is not None), None)


def _entries(storage: Storage, place: str) -> set[str]:
    """The entries of a run's directory that a checkpoint which was not uploaded may lie in."""
    path, own = place.lstrip("/"), storage.root.strip("/") + "/"
    entry = entry_of("./" + path.removeprefix(own) if path.startswith(own) else place)
    if entry is not None:
        return {entry}
    # An older journal has the path of one in the run's directory, which may have moved since.
    return set(filter(is_numbered, path.split("/")))


def _remove_beginning(folder: str, prefix: str) -> None:
    for path in glob.glob(os.path.join(glob.escape(folder), f"{prefix}*")):
        shutil.rmtree(path, ignore_errors=True)


def _clear_dead_spools() -> None:
    """Delete what drivers that were killed had still to upload; their records stay."""
    places = os.path.join(glob.escape(tempfile.gettempdir()), f"{spool_prefix()}*")
    for snapshot in glob.glob(os.path.join(places, f"{SNAPSHOT_PREFIX}*")):
        spool = os.path.dirname(snapshot)
        if _is_mine(spool) and not is_driven(os.path.join(spool, JOURNAL_FILE)):
            shutil.rmtree(snapshot, ignore_errors=True)


def _is_mine(directory: str) -> bool:
    """Whether this user has made it: in a directory of others', opening a file may never end."""
    try:
        status = os.lstat(directory)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _spooled(spool: str) -> Iterator[tuple[str, str]]:
    """Name and path of each file that belongs on storage as well, the journal apart."""
    for directory, folders, files in os.walk(spool):
        folders[:] = [name for name in folders if not name.startswith(SNAPSHOT_PREFIX)]
        for file in files:
            path = os.path.join(directory, file)
            name = os.path.relpath(path, spool).replace(os.sep, "/")
            # A file that is being written goes by this name until it is whole.
            if name != JOURNAL_FILE and not name.endswith(".tmp"):
                yield name, path


def _version(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _has_run(storage: Storage) -> bool:
    # The journal of a driver that was killed as it began has no line yet, or half of one.
    return storage.exists(JOURNAL_FILE) and b"\n" in storage.read(JOURNAL_FILE)


def experiment_storage(run_config: RunConfig, name: str) -> Storage:
    """The directory that holds the runs of one name."""
    root = open_storage(
        run_config.storage_path or settings.results_root(), run_config.storage_filesystem
    )
    return root.child(name)
