"""Result: what a run achieved, read from its directory alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lockstep.checkpoint import Checkpoint
from lockstep.config import CheckpointConfig
from lockstep.error_record import unpack_error
from lockstep.journal import JOURNAL_FILE, parse_line, read_lines
from lockstep.metrics import flatten, full_row, look_up
from lockstep.retention import CheckpointRecord, best_first_last
from lockstep.storage import Storage, open_storage

if TYPE_CHECKING:
    import os

    import pandas as pd
    import pyarrow.fs

__all__ = ["Result"]


class Result:
    """What a run achieved. ``fit()`` returns it; ``Result.from_path`` reads it again, anywhere.

    Attributes:
        metrics: the last row: what was reported, and the keys every row gets.
        reported_metrics: exactly what was reported last.
        metrics_by_rank: the same from every rank.
        checkpoint: the newest checkpoint, None if there is none.
        best_checkpoints: ``(checkpoint, metrics)`` pairs that were kept, the best one last.
        error: the exception that ended the run, None if there was none.
        config: the ``train_loop_config``.
        state: ``"finished"``, ``"failed"``, ``"interrupted"``, or ``"unfinished"`` if the driver
            died or still runs.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        records = _Records(storage)
        self.state: str = records.end["state"] if records.end else "unfinished"
        self.config: dict[str, Any] = dict(records.run["config"].get("train_loop_config") or {})
        self.metrics: dict[str, Any] = {}
        self.reported_metrics: dict[str, Any] = {}
        self.metrics_by_rank: list[dict[str, Any]] = []
        if records.last_report is not None:
            report = parse_line(records.last_report)
            self.reported_metrics = _reported(report)
            self.metrics_by_rank = report["ranks"]
            self.metrics = records.row(report)
            if "done" not in self.reported_metrics:
                self.metrics["done"] = self.state == "finished"
        self._failures: list[dict[str, Any]] = []
        if self.state == "failed" and records.failure is not None:
            self._failures = records.failure["errors"]
        self._load_errors()
        self._checkpoints = _existing(storage, records.checkpoints)
        self._checkpoint_config = CheckpointConfig(**records.run["checkpoint_config"])

    @classmethod
    def from_path(
        cls,
        path: str | os.PathLike[str],
        storage_filesystem: pyarrow.fs.FileSystem | None = None,
    ) -> Result:
        """Read a run's directory, or the newest run of an experiment's directory.

        Raises:
            FileNotFoundError: there is no run.
        """
        storage = open_storage(path, storage_filesystem)
        if not storage.exists(JOURNAL_FILE):
            storage = _newest_run(storage)
        return cls(storage)

    @property
    def path(self) -> str:
        """The run's directory (a path on ``filesystem``)."""
        return self._storage.root

    @property
    def log_dir(self) -> Path:
        """The run's directory; its ``parent`` is the experiment's."""
        return Path(self._storage.root)

    @property
    def filesystem(self) -> pyarrow.fs.FileSystem:
        """The Arrow filesystem that ``path`` is on."""
        return self._storage.filesystem

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint."""
        if not self._checkpoints:
            return None
        return self._open(max(self._checkpoints, key=lambda record: record.id))

    @property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The checkpoints that were kept by score, with their metrics, from worst to best."""
        ranked = best_first_last(self._checkpoints, self._checkpoint_config)
        return [(self._open(record), record.metrics) for record in ranked]

    def get_best_checkpoint(self, metric: str, mode: Literal["max", "min"]) -> Checkpoint | None:
        """The kept checkpoint whose row has the largest or smallest ``metric``."""
        if mode not in ("max", "min"):
            raise ValueError(f"get_best_checkpoint(mode={mode!r}): expected 'max' or 'min'.")
        scored = [
            (value, record)
            for record in self._checkpoints
            if isinstance(value := look_up(record.metrics, metric), (int, float)) and value == value
        ]
        if not scored:
            return None
        pick = max if mode == "max" else min
        return self._open(pick(scored, key=lambda pair: pair[0])[1])

    @cached_property
    def metrics_dataframe(self) -> pd.DataFrame:
        """One row a report, from every attempt; nested metrics as ``a/b`` columns."""
        import pandas as pd

        records = _Records(self._storage)
        rows = [
            flatten({**records.row(report), "attempt": report["attempt"]})
            for report in records.reports()
        ]
        return pd.DataFrame(rows)

    @cached_property
    def log_dataframe(self) -> pd.DataFrame:
        """One row a ``train.log()`` call: rank, attempt, step, time and the metrics."""
        import pandas as pd

        rows = [
            {
                "rank": batch["rank"],
                "attempt": batch["attempt"],
                "step": row["step"],
                "time": row["time"],
                **flatten(row["metrics"]),
            }
            for batch in _Records(self._storage).logs()
            for row in batch["rows"]
        ]
        return pd.DataFrame(rows, columns=None if rows else ["rank", "attempt", "step", "time"])

    def __repr__(self) -> str:
        shown = {
            "state": self.state,
            "metrics": self.reported_metrics,
            "path": self._storage.uri,
            "checkpoint": self.checkpoint,
            "error": self.error,
        }
        lines = ",\n  ".join(
            f"{key}={value!r}" for key, value in shown.items() if value is not None
        )
        return f"Result(\n  {lines}\n)"

    def __getstate__(self) -> dict[str, Any]:
        # The dataframes are read again where they are wanted; the errors go as their records,
        # because the class of one may be local to a function.
        left_out = ("metrics_dataframe", "log_dataframe", "error", "worker_failures")
        return {key: value for key, value in vars(self).items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._load_errors()

    def _load_errors(self) -> None:
        self.worker_failures: dict[int, BaseException] = {}
        for item in self._failures:
            if item["rank"] not in self.worker_failures:
                self.worker_failures[item["rank"]] = unpack_error(item["error"])
        self.error: BaseException | None = next(iter(self.worker_failures.values()), None)

    def _open(self, record: CheckpointRecord) -> Checkpoint:
        return open_checkpoint(self._storage, record)


def address_from(storage: Storage, checkpoint: Checkpoint) -> str:
    """How a run in ``storage`` calls a checkpoint that lies outside it."""
    path, local = checkpoint.path, checkpoint.get_internal_representation()[0] == "local_path"
    assert path is not None
    if local == storage.is_local:
        return path
    return Path(path).as_uri() if local else str(checkpoint.uri)


def open_checkpoint(storage: Storage, record: CheckpointRecord) -> Checkpoint:
    """The checkpoint that a run in ``storage`` recorded."""
    if not record.uploaded and "://" in record.name:
        return Checkpoint(record.name)
    place = storage.path(record.name) if record.uploaded else record.name
    return Checkpoint(place, None if storage.is_local else storage.filesystem)


class _Records:
    """A journal, read once; rows are parsed only when asked for."""

    def __init__(self, storage: Storage) -> None:
        self.run: dict[str, Any] = {}
        self.attempts: dict[int, dict[str, Any]] = {}
        self.checkpoints: dict[str, CheckpointRecord] = {}
        self.failure: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.last_report: bytes | None = None
        self._reports: list[bytes] = []
        self._logs: list[bytes] = []
        for line in read_lines(storage.read(JOURNAL_FILE)):
            if line.startswith(b'{"event":"report"'):
                self._reports.append(line)
            elif line.startswith(b'{"event":"log"'):
                self._logs.append(line)
            else:
                self._take(parse_line(line))
        if self._reports:
            self.last_report = self._reports[-1]
        if not self.run:
            raise FileNotFoundError(
                f"{storage.path(JOURNAL_FILE)} records no run; the driver may have been killed "
                "as it began."
            )

    def reports(self) -> Iterator[dict[str, Any]]:
        return map(parse_line, self._reports)

    def logs(self) -> Iterator[dict[str, Any]]:
        return map(parse_line, self._logs)

    def row(self, report: dict[str, Any]) -> dict[str, Any]:
        return full_row(_reported(report), self.run, self.attempts[report["attempt"]], report)

    def _take(self, record: dict[str, Any]) -> None:
        event = record.pop("event")
        if event == "run":
            self.run = record
        elif event == "attempt":
            self.attempts[record["attempt"]] = record
        elif event == "checkpoint":
            self.checkpoints[record["name"]] = CheckpointRecord(**record)
        elif event == "delete":
            self.checkpoints.pop(record["name"], None)
        elif event == "failure":
            self.failure = record
        elif event == "end":
            self.end = record


def _reported(report: dict[str, Any]) -> dict[str, Any]:
    metrics: dict[str, Any] = report["reduced"] if "reduced" in report else report["ranks"][0]
    return metrics


def _existing(storage: Storage, known: dict[str, CheckpointRecord]) -> list[CheckpointRecord]:
    """What is really there: publishing makes a checkpoint exist, the journal only follows."""
    found = [record for record in known.values() if not record.uploaded]
    for name in storage.listdir(""):
        if name in known and known[name].uploaded:
            if storage.is_published(name):
                found.append(known[name])
        elif storage.is_published(name):
            manifest = storage.manifest(name)
            if manifest is not None:
                found.append(CheckpointRecord(**parse_line(manifest)))
    return sorted(found, key=lambda record: record.id)


def _newest_run(experiment: Storage) -> Storage:
    runs = {}
    for name in experiment.listdir(""):
        run = experiment.child(name)
        if run.exists(JOURNAL_FILE):
            # The journal of a driver that was killed as it began is empty.
            with suppress(FileNotFoundError):
                runs[_Records(run).run["time"]] = run
    if not runs:
        raise FileNotFoundError(
            f"{experiment.uri} is not the directory of a run: there is no {JOURNAL_FILE} with a "
            "run in it, nor in any directory in it."
        )
    return runs[max(runs)]
