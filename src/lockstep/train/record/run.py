"""One run's records: its identity, its rows and its checkpoints, in its directory and journal."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any

from lockstep import settings
from lockstep.checkpoint import Checkpoint
from lockstep.checkpoint.returned import Returned
from lockstep.checks import is_number
from lockstep.config import CheckpointConfig, CheckpointUploadMode, RunConfig
from lockstep.engine.base import WorkerInfo
from lockstep.error_record import error_data, error_text
from lockstep.errors import StorageError
from lockstep.journal import Journal
from lockstep.journal.environment import EnvironmentRecorder
from lockstep.journal.records import RunRecords, existing_checkpoints, open_address, open_checkpoint
from lockstep.journal.segments import segment_directory
from lockstep.ledger.live import LiveTimes
from lockstep.metrics import first_result, full_row, look_up
from lockstep.result import Result
from lockstep.retention import PENDING, CheckpointRecord, surplus
from lockstep.run_layout import (
    ERROR_FILE,
    FORMAT_VERSION,
    JOURNAL_FILE,
    LOG_DIRECTORY,
    METADATA_FILE,
    RETURN_FILE,
    TRAINER_FILE,
    date_name,
    entry_of,
    is_numbered,
    run_directory,
    spool_prefix,
)
from lockstep.storage import Storage, open_storage
from lockstep.storage.local import open_private
from lockstep.train.datasets import merge_positions
from lockstep.train.protocol import Broken, CheckpointReport, Report
from lockstep.train.record.leftovers import clear_leftovers, clear_snapshots
from lockstep.train.record.mirror import Mirror
from lockstep.train.reduction import combine

__all__ = ["Run", "RunPlace", "experiment_storage"]


@dataclass(frozen=True)
class RunPlace:
    """Where a trial's run lies and what it is called, chosen by the trial's experiment."""

    storage: Storage
    identity: Mapping[str, Any]
    """trial_id, experiment_id, experiment_tag, experiment_name, and ``trial``, the experiment's."""


_NEXT_TRY = 1_000_000
"""Added to the number of a place that a write was abandoned in: more than a run has attempts."""


class Run:
    """A run that is being driven. Used from the driver's thread, except where a method says so.

    ``directory`` is on this machine: the run's own directory or, where storage is remote, the
    spool of its ``Mirror``.

    Attributes:
        rows: how many rows the run has.
        iteration: how many reports led to the current state; an attempt starts at its
            checkpoint's.
        last_metrics: what was reported last.
        times: where the time of this attempt's reports went.
        data_wait: the largest share of time that a rank waited for data, at the last report.
        checkpoints: those that exist, oldest first.
        pending: a checkpoint that the next attempt starts from, and that is not on storage yet.
        returned: what rank 0's function has returned, in the attempt that is the last so far.
        broken: what the guard has found before this driver, and no attempt has run again yet.
        best: the best value of the metric that its panel follows, in what was delivered.
        is_protected: whether another trial will start from a checkpoint, so it must stay.
        metadata: what ``get_metadata()`` of the run's checkpoints has, JSON values by name.
    """

    def __init__(
        self, storage: Storage, header: dict[str, Any], *, restored: bool, leased: bool
    ) -> None:
        self.storage = storage
        self.restored = restored
        self.is_protected: Callable[[CheckpointRecord], bool] = lambda _: False
        self.metadata: Mapping[str, Any] = {}
        self.returned: Returned | None = None
        self.pending: CheckpointRecord | None = None
        self.broken: Broken | None = None
        self.best: tuple[str, float, int] | None = None
        self._unfinished_stages: set[str] = set()
        self._stages: dict[str, int] = {}
        """Checkpoints that are not published yet → the attempt that stages them."""
        # A restored run may find snapshots of the driver before.
        self._has_saved = restored
        self._mirror: Mirror | None = None
        self._unreachable: StorageError | None = None
        self._environment: EnvironmentRecorder | None = None
        with ExitStack() as undo:
            if leased or not storage.is_local:  # of local trials, the experiment does it
                clear_leftovers()
            if not storage.is_local:
                self._mirror = Mirror(storage, JOURNAL_FILE, spool_prefix(), leased=leased)
                undo.callback(self._mirror.close)
                if restored:
                    self._fetch(self._mirror)
            self.directory = self._mirror.directory if self._mirror else storage.root
            self._journal = Journal(os.path.join(self.directory, JOURNAL_FILE))
            undo.callback(self._journal.close)
            # Journal() takes the lock. The records are read after that: before, another process may
            # have been writing.
            self._begin(header, RunRecords(storage) if restored else None)
            if leased:  # of trials, the experiment does it
                self._environment = EnvironmentRecorder(self.directory)
                undo.callback(self._environment.close)
            self._resources = undo.pop_all()

    @property
    def title(self) -> str:
        """What its processes are called: the user's name of the run, of a trial also its own."""
        of_trial = self.header.get("name")
        return f"{self.experiment_name} {of_trial}" if of_trial else self.experiment_name

    def _begin(self, header: dict[str, Any], past: RunRecords | None) -> None:
        self.header = {**(past.run if past else {}), **header}
        self.trial_id: str = self.header["trial_id"]
        self.trainer_name: str = self.header["trainer"]
        self.experiment_name: str = self.header["experiment_name"]
        self.name: str = self.header.get("name") or f"{self.trainer_name}_{self.trial_id}"
        self.checkpoint_config = CheckpointConfig(**self.header["checkpoint_config"])
        self._started = time.perf_counter()
        self.checkpoints: list[CheckpointRecord] = []
        self._user_directories: set[str] = set()
        self.rows = 0
        self._attempts = 0
        if past is not None:
            self._take_over(past)
        self.iteration = 0
        self.last_metrics: dict[str, Any] = {}
        self.data_wait: float | None = None
        self._last_row: dict[str, Any] = {}
        self._checkpoint_rows: dict[str, dict[str, Any]] = {}
        self._journal.append("restore" if past else "run", **header, directory=self.directory)
        self._attempt: dict[str, Any] = {}
        # In nanoseconds: their differences have few digits, and are written with every report.
        self._attempt_started = 0
        self._attempt_rows = 0
        self._total_before = 0.0
        self._last_report = 0
        self.times = LiveTimes(0)
        self._times_before = (0.0, 0.0, 0.0)
        self._tail: dict[int, tuple[float, dict[str, float]]] = {}
        self._all_returned: float | None = None

    def _take_over(self, past: RunRecords) -> None:
        """Continue from what an earlier driver has left, and clear what it did not publish."""
        # This driver has the lock, so whatever is staged belongs to a driver that is gone.
        self.storage.sweep()
        # The journal knows what was published; a user may have deleted some of it since.
        self.checkpoints = existing_checkpoints(self.storage, past.checkpoints)
        entries = map(entry_of, past.never_uploaded())
        self._user_directories = {entry for entry in entries if entry is not None}
        self._unfinished_stages -= self.taken_names()
        # Only numbered names are certainly lockstep's own. Another directory may be the user's, and
        # is deleted only if a checkpoint of its name is begun.
        for name in filter(is_numbered, sorted(self._unfinished_stages)):
            self._clear(name)
        self.rows = past.rows
        if past.broken is not None:
            self.broken = Broken(**{**past.broken, "ranks": tuple(past.broken["ranks"])})
        self._attempts = max(past.attempts, default=0)
        lost = self._mirror is not None and not self._mirror.found_spool
        if lost and past.state == "unfinished":
            # The last driver may have begun an attempt after its last copy: a number is used once.
            self._attempts += 1

    def _fetch(self, mirror: Mirror) -> None:
        """Get the small files of a run on remote storage, to continue them."""
        names = []
        for name in self.storage.listdir(""):
            if name == segment_directory(JOURNAL_FILE) or name.startswith(".lease-"):
                continue
            if name != LOG_DIRECTORY and self.storage.is_directory(name):
                self._unfinished_stages.add(name)
            # trainer.pkl may be large, and a driver never changes it: it stays where it is.
            elif name != TRAINER_FILE:
                names.append(name)
        mirror.fetch(names)

    @classmethod
    def create(
        cls,
        trainer_name: str,
        run_config: RunConfig,
        config: Mapping[str, Any],
        place: RunPlace | None = None,
        parent: Callable[[Storage], dict[str, Any]] | None = None,
    ) -> Run:
        """A new run, at ``place`` or in a directory of its own.

        At a ``place`` the experiment's lease protects the run. ``parent``: what the journal of a
        run in that directory says of the run that it was forked from.
        """
        now = time.time()
        leased = place is None
        if place is None:
            place = _own_place(trainer_name, run_config, now)
        elif _has_run(place.storage):
            raise StorageError(
                f"{place.storage.uri} is the directory of another run; give this one another."
            )
        place.storage.make_directory("")
        header = {
            "version": FORMAT_VERSION,
            **place.identity,
            "trainer": trainer_name,
            "config": dict(config),
            "checkpoint_config": asdict(run_config.checkpoint_config),
            "time": now,
            **({} if parent is None else {"parent": parent(place.storage)}),
        }
        return cls(place.storage, header, restored=False, leased=leased)

    @classmethod
    def reopen(
        cls,
        storage: Storage,
        run_config: RunConfig,
        config: Mapping[str, Any],
        *,
        leased: bool = True,
    ) -> Run:
        """A run to resume, however it ended; ``leased``: False for a trial's."""
        header = {
            "config": dict(config),
            "checkpoint_config": asdict(run_config.checkpoint_config),
            "restored": time.time(),
        }
        return cls(storage, header, restored=True, leased=leased)

    # -------------------------------------------------------------------------- what there is

    def past(self) -> dict[str, Any]:
        """The fields of the state machine that earlier attempts have set."""
        newest = self.newest_checkpoint()
        return {
            "attempt": self._attempts + 1,
            "rows": self.rows,
            "safe_rows": newest.index if newest else 0,
            "next_checkpoint_id": newest.id + 1 if newest else 0,
            "committed": self.taken_names(),
        }

    def taken_names(self) -> frozenset[str]:
        """Names that no new checkpoint may get. A user's own directory keeps its name for ever."""
        return frozenset({*(record.name for record in self.checkpoints), *self._user_directories})

    @property
    def elapsed_s(self) -> float:
        """Seconds since this driver opened the run."""
        return time.perf_counter() - self._started

    @property
    def has_score(self) -> bool:
        """Whether a checkpoint has the score that ranks them."""
        return any(record.score is not None for record in self.checkpoints)

    def newest_checkpoint(self) -> CheckpointRecord | None:
        """The checkpoint that a new attempt starts from."""
        pending = [] if self.pending is None else [self.pending]
        return max((*self.checkpoints, *pending), key=lambda record: record.id, default=None)

    def newest_stored(self) -> CheckpointRecord | None:
        """The newest checkpoint that is on storage."""
        return max(self.checkpoints, key=lambda record: record.id, default=None)

    def open_checkpoint(self, record: CheckpointRecord) -> Checkpoint:
        """A committed checkpoint for users."""
        return open_checkpoint(self.storage, record)

    def open_reported(self, reports: Sequence[Report], name: str) -> Checkpoint:
        """The checkpoint of a row; it may not be committed yet."""
        location = _location(reports)
        if location is None:
            opened = Checkpoint.at(self.storage.child(name))
        else:
            opened = open_address(self.storage, location)
        return opened.as_kind(_lead(reports).kind)

    # ------------------------------------------------------------------------------ attempts

    def begin_attempt(
        self, attempt: int, workers: Sequence[WorkerInfo], warmup: float, cluster: str = ""
    ) -> None:
        """Record that the workers of an attempt are up, ``warmup`` seconds after its start.

        ``cluster``: where the cluster is reached that has them; empty without one.
        """
        if attempt > 1:
            # The workers of the attempt before were killed, and could not clean up.
            clear_snapshots(self.directory, self.trial_id, self.storage.root)
        # Counts continue at the checkpoint: what came after it is lost and will be trained again.
        newest = self.newest_checkpoint()
        self.iteration = 0 if newest is None else newest.iteration
        self._total_before = 0.0 if newest is None else newest.trained_s
        self._attempt_rows = 0
        self._tail, self._all_returned = {}, None
        self._times_before = self._all_times()
        self.times = LiveTimes(len(workers))
        self._attempt_started = self._last_report = time.perf_counter_ns()
        self._attempt = self._journal.append(
            "attempt",
            attempt=attempt,
            workers=[worker._asdict() for worker in workers],
            warmup_time=warmup,
            iteration=self.iteration,
            time_before=self._total_before,
            time=time.time(),
            **({"cluster": cluster} if cluster else {}),
        )

    def fall_back(self) -> None:
        """The ranks of this attempt start from storage: the newer state could not be written."""
        stored = self.newest_stored()
        iteration, trained_s = (stored.iteration, stored.trained_s) if stored else (0, 0.0)
        # A rank may notice that after its first report: what is counted stays.
        if self._attempt_rows or iteration == self.iteration:
            return
        self.iteration, self._total_before = iteration, trained_s
        again = {"iteration": iteration, "time_before": trained_s}
        self._attempt.update(again)
        self._journal.append("fall_back", attempt=self._attempt["attempt"], **again)

    def record_failure(
        self,
        attempt: int,
        errors: Sequence[Mapping[str, Any]],
        message: str,
        *,
        retry: bool,
        broken: Broken | None = None,
    ) -> None:
        """Journal a failed attempt: one sentence, and each rank's error, the first cause first.

        ``broken``: what the guard has found, which the next attempt runs again.
        """
        self._journal.append(
            "failure",
            attempt=attempt,
            message=message,
            errors=[{**failed, "error": error_data(failed["error"])} for failed in errors],
            retry=retry,
            time=time.time(),
            **({} if broken is None else {"broken": broken._asdict()}),
        )
        texts = (error_text(failed["error"]) for failed in errors)
        with suppress(OSError):  # the journal has the same
            path = os.path.join(self.directory, ERROR_FILE)
            with open(path, "a", encoding="utf-8", opener=open_private) as file:
                file.write("\n".join((f"Attempt {attempt}: {message}", *texts, "")))

    def record_attempt_stopped(
        self, attempt: int, kind: str, rank: int | None, next_size: int | None
    ) -> None:
        """Journal that an attempt stopped on a notice; ``next_size``: None if none follows."""
        self._journal.append(
            "attempt_stopped",
            attempt=attempt,
            kind=kind,
            rank=rank,
            next_size=next_size,
            time=time.time(),
            **self._after_last_report(),
        )

    def note_return(self, rank: int, busy: float, waits: dict[str, float] | None) -> None:
        """A rank's function has returned, ``busy`` seconds after its last report."""
        self._tail[rank] = busy, waits or {}
        self._all_returned = self._attempt_s()

    def _attempt_s(self) -> float:
        return (time.perf_counter_ns() - self._attempt_started) / 1e9

    def _after_last_report(self) -> dict[str, Any]:
        """What the ledger needs to know of the time after the last report of an attempt."""
        if len(self._tail) < len(self._attempt.get("workers", ())):
            return {}
        parts = [self._tail[rank] for rank in sorted(self._tail)]
        return {
            "returned_after": self._all_returned,
            "busy": [busy for busy, _ in parts],
            "waits": [waits for _, waits in parts],
        }

    # ---------------------------------------------------------------------------------- rows

    def first_result(self) -> dict[str, Any]:
        """What ``trial.last_result`` holds before the first report."""
        return first_result(self.header, self._attempt)

    def record_report(self, reports: Sequence[Report], checkpoint: str | None) -> dict[str, Any]:
        """Journal one report of all ranks; returns its row, with the automatic keys."""
        now = time.perf_counter_ns()
        this_iter = (now - self._last_report) / 1e9
        self._last_report = now
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
        busy = [report.busy for report in reports]
        waits = None
        for report in reports:
            if report.waits:
                waits = also["waits"] = [report.waits or {} for report in reports]
                break
        self.times.add(busy, waits, this_iter)
        record = self._journal.append(
            "report",
            index=self.rows,
            attempt=self._attempt["attempt"],
            attempt_index=self._attempt_rows,
            iteration=self.iteration,
            time=time.time(),
            time_this_iter=this_iter,
            time_since_start=(now - self._attempt_started) / 1e9,
            worker_time=int(lead.time),
            worker_time_this_iter=lead.time_this_iter,
            checkpoint=checkpoint and (_location(reports) or checkpoint),
            ranks=[report.metrics for report in reports],
            busy=busy,
            **also,
        )
        row = self._last_row = full_row(metrics, self.header, self._attempt, record)
        if checkpoint is not None:
            # An asynchronous checkpoint is described later, when other rows have followed.
            self._checkpoint_rows[checkpoint] = row
        return row

    def record_finding(self, rank: int, kind: str, text: str) -> None:
        """Journal what the guard has found in the last report."""
        self._journal.append("guard", report=self.rows, rank=rank, kind=kind, text=text)

    def _all_times(self) -> tuple[float, float, float]:
        before, times = self._times_before, self.times
        return before[0] + times.computed, before[1] + times.data, before[2] + times.ranks

    def times_so_far(self) -> tuple[float, float, float] | None:
        """The shares of this driver's time that ranks computed, waited for data, and for ranks."""
        elapsed = self.elapsed_s
        if not self._attempt_rows or elapsed <= 0:
            return None
        computed, data, ranks = self._all_times()
        return computed / elapsed, data / elapsed, ranks / elapsed

    def record_logs(self, rank: int, rows: list[str]) -> None:
        """Journal ``train.log()`` rows."""
        self._journal.append_logs(rank, self._attempt["attempt"], rows)

    # --------------------------------------------------------------------------- checkpoints

    def describe_checkpoint(
        self, name: str, checkpoint_id: int, report_number: int, reports: Sequence[Report | None]
    ) -> CheckpointRecord:
        """The record of a checkpoint to publish, with its score and its row's metrics."""
        lead = _lead(reports)
        metrics = self._checkpoint_rows.pop(name, {})
        if lead.of_last_row and self._attempt_rows:
            metrics = self._last_row
        attribute = self.checkpoint_config.checkpoint_score_attribute
        score = lead.score
        if score is None and attribute is not None:
            value = look_up(metrics, attribute)
            if is_number(value):
                score = float(value)
        return CheckpointRecord(
            id=checkpoint_id,
            name=lead.location or name,
            index=report_number,
            score=score,
            metrics=metrics,
            timestamp=int(time.time()),
            uploaded=lead.mode is not CheckpointUploadMode.NO_UPLOAD,
            # The iteration of the checkpoint's own row. Others may have followed it (ASYNC).
            iteration=self.iteration - (self.rows - report_number),
            trained_s=self._total_before + self._attempt_s(),
            positions=merge_positions(reports),
            kind=lead.kind,
            validation=(
                None if lead.validation is None else {"status": PENDING, **lead.validation}
            ),
        )

    def publish(self, record: CheckpointRecord, stage: int | None = None) -> None:
        """The atomic step after which the checkpoint exists. May run in another thread.

        ``stage``: the ``stage_number`` of its files, where another try may begin meanwhile.
        """
        if stage is None:
            stage = self.stage_number(record.name)
        # The journal first: a run restored from this checkpoint must have its row, and must know
        # which directories are the user's.
        if self._mirror is not None:
            self._mirror.sync_journal()
        if record.uploaded:
            self._add_metadata(self.storage.stage(record.name, stage))
            manifest = json.dumps(asdict(record), default=repr).encode()
            try:
                self.storage.publish(record.name, manifest, stage)
            except StorageError:
                # A try that was abandoned may have published the same since.
                if self.storage.manifest(record.name) != manifest:
                    raise

    def _add_metadata(self, directory: str) -> None:
        """Add the trainer's metadata to a checkpoint's own, which counts for names in both."""
        if not self.metadata:
            return
        file, own = f"{directory}/{METADATA_FILE}", {}
        with suppress(FileNotFoundError):
            own = json.loads(self.storage.read(file))
        self.storage.put_bytes(file, json.dumps({**self.metadata, **own}).encode())

    def record_checkpoint(self, record: CheckpointRecord) -> list[CheckpointRecord]:
        """Journal a published checkpoint; returns those that may be deleted now."""
        # After the publish: a journaled checkpoint always exists. One that was published and not
        # journaled is found by its manifest, which has the same fields.
        self._journal.append("checkpoint", **asdict(record))
        self.checkpoints.append(record)
        self._stages.pop(record.name, None)
        if self.pending is not None and self.pending.id <= record.id:
            self.pending = None
        return self._drop_surplus(ended=False)

    def record_validation(
        self,
        record: CheckpointRecord,
        status: str,
        metrics: Mapping[str, Any],
        error: str,
        seconds: float,
    ) -> CheckpointRecord:
        """Journal what came of a validation; returns the checkpoint's record as it is now."""
        score = record.score
        attribute = self.checkpoint_config.checkpoint_score_attribute
        if attribute is not None and is_number(value := look_up(metrics, attribute)):
            score = float(value)
        written = self._journal.append(
            "validated",
            id=record.id,
            status=status,
            metrics=dict(metrics),
            score=score,
            error=error,
            seconds=seconds,
            time=time.time(),
        )
        now = record.validated(written)
        self.checkpoints = [now if known.id == now.id else known for known in self.checkpoints]
        return now

    def drop_surplus(self) -> list[CheckpointRecord]:
        """The checkpoints that may be deleted now, which the journal does not have any more."""
        return self._drop_surplus(ended=False)

    def begin_save(self, name: str) -> str:
        """The directory on storage where this attempt puts the files of a checkpoint."""
        self._has_saved = True
        self._clear(name)
        return self.stage(name)

    def stage(self, name: str) -> str:
        """Where a checkpoint's files are until it is published: in a place of its attempt's own."""
        attempt = self._stages.setdefault(name, self._attempt.get("attempt", 0))
        return self.storage.stage(name, attempt)

    def stage_number(self, name: str) -> int:
        """Which of the places of a checkpoint that is not published yet has its files."""
        return self._stages.get(name, 0)

    def _clear(self, name: str) -> None:
        """Delete what a killed driver, or an abandoned write, has left of a checkpoint."""
        if name in self._unfinished_stages:
            self._unfinished_stages.remove(name)
            self.storage.discard(name, self._stages.pop(name, 0))

    def discard(self, name: str, *, later: bool = False, in_memory: bool = False) -> None:
        """Delete what was saved of a checkpoint that will never be published.

        ``later``: when its name is used again, or the run is restored. ``in_memory``: only the
        files; the checkpoint may be written again.
        """
        if not in_memory:
            self._checkpoint_rows.pop(name, None)
            if self.pending is not None and self.pending.name == name:
                self.pending = None
        if later:
            self._unfinished_stages.add(name)
            # What still writes there must not write into the files of the next try.
            self._stages[name] = self.stage_number(name) + _NEXT_TRY
        else:
            self.storage.discard(name, self._stages.pop(name, 0))

    def delete(self, record: CheckpointRecord) -> None:
        """Delete an old checkpoint's files. May run in another thread."""
        if self._mirror is not None:
            self._mirror.check_lease()
        if record.uploaded:
            self.storage.unpublish(record.name)

    def _drop_surplus(self, *, ended: bool) -> list[CheckpointRecord]:
        old = surplus(self.checkpoints, self.checkpoint_config, ended=ended)
        dropped = [
            record
            for record in old
            if not record.awaits_validation and not self.is_protected(record)
        ]
        for record in dropped:
            self.checkpoints.remove(record)
            self._journal.append("delete", id=record.id, name=record.name)
        return dropped

    # --------------------------------------------------------------------------------- the end

    def end(self, state: str, *, flush: bool = True) -> StorageError | None:
        """Journal the end and delete what was not published; returns why if deleting failed.

        Args:
            state: the value of a ``Phase`` that has ended.
            flush: False where the caller flushes later, so that the end survives a power cut.
        """
        failed = self._unreachable
        if self._has_saved or state != "finished":
            # Else no worker has made a snapshot, and listing the temporary directory of a machine
            # may take longer than the rest of the end.
            clear_snapshots(self.directory, self.trial_id, self.storage.root)
        try:
            if failed is None:
                # A run that has not finished may be resumed, and needs a checkpoint for that.
                for record in self._drop_surplus(ended=state == "finished"):
                    self.delete(record)
                self.storage.sweep()
        except StorageError as error:
            failed = error
        returned = self._keep_returned() if state == "finished" else {}
        # Of a restored run it is unknown: an earlier driver's rows may have been better.
        best = {} if self.restored or self.best is None else {"best": self.best}
        after = self._after_last_report()
        self._journal.append("end", state=state, time=time.time(), **returned, **after, **best)
        if flush:
            self._journal.flush()
        return failed

    def _keep_returned(self) -> dict[str, Any]:
        """Write a plain return value to its file; returns what the journal says of it."""
        if self.returned is None:
            return {}
        kind, type_name, content = self.returned
        if kind == "data":
            with suppress(StorageError):  # reading the value says that the file is not there
                open_storage(self.directory).write(RETURN_FILE, content)
        return {"returned": {"kind": kind, "type": type_name}}

    def flush(self) -> None:
        """Make the journal survive a power cut. May run in another thread."""
        self._journal.flush()

    def sync(self) -> None:
        """Copy the small files that have changed to remote storage. May run in another thread."""
        if self._mirror is not None:
            self._mirror.sync()

    def sync_journal(self) -> None:
        """Copy what is new in the journal to remote storage. May run in another thread."""
        if self._mirror is not None:
            self._mirror.sync_journal()

    def finish_copy(self) -> None:
        """Copy the small files to remote storage for the last time.

        Raises:
            StorageError: that failed; it says where they are kept instead.
        """
        if self._mirror is not None:
            if self._environment is not None:
                self._environment.close()
            self._mirror.finish()

    def abandon_storage(self, error: StorageError) -> None:
        """Remote storage does not answer: ask it for nothing more. ``finish_copy`` raises then."""
        self._unreachable = error
        if self._mirror is not None:
            self._mirror.abandon(error)

    def close(self) -> None:
        """Release the journal and the spool. Idempotent."""
        self._resources.close()

    def result(self) -> Result:
        """What the directory says, after the end.

        Raises:
            StorageError: the directory does not exist any more.
        """
        try:
            return Result(self.storage, self.returned)
        except FileNotFoundError as error:
            raise StorageError(
                f"{self.storage.uri} is gone, and the run's records with it: leave the directory "
                "alone while the run is running."
            ) from error


def experiment_storage(run_config: RunConfig, name: str) -> Storage:
    """The directory that holds the runs of one name."""
    root = open_storage(
        run_config.storage_path or settings.results_root(), run_config.storage_filesystem
    )
    return root.child(name)


def _own_place(trainer_name: str, run_config: RunConfig, now: float) -> RunPlace:
    trial_id = f"{uuid.uuid4().hex[:5]}_00000"
    directory = run_directory(trainer_name, trial_id, "0", now)
    experiment = run_config.name or f"{trainer_name}_{date_name(now)}"
    identity = {
        "trial_id": trial_id,
        "experiment_id": uuid.uuid4().hex,
        "experiment_tag": "0",
        "experiment_name": experiment,
    }
    return RunPlace(experiment_storage(run_config, experiment).child(directory), identity)


def _has_run(storage: Storage) -> bool:
    # The journal of a driver that was killed as it began has no line yet, or half of one.
    return storage.exists(JOURNAL_FILE) and b"\n" in storage.read(JOURNAL_FILE)


def _lead(reports: Sequence[Report | None]) -> CheckpointReport:
    """The lowest rank's part of a checkpoint."""
    return next(r.checkpoint for r in reports if r is not None and r.checkpoint is not None)


def _location(reports: Sequence[Report]) -> str | None:
    """Where the checkpoint of a row lies that is not uploaded."""
    return next((r.checkpoint.location for r in reports if r.checkpoint is not None), None)
