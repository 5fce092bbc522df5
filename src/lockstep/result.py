"""Result: the outcome of a run, read from the run's directory alone."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Collection, Container, Iterable
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lockstep.checkpoint import Checkpoint
from lockstep.checkpoint.returned import Returned, unpack_data, unpack_returned
from lockstep.checks import is_number
from lockstep.config import CheckpointConfig
from lockstep.error_record import unpack_error, with_live
from lockstep.errors import LockstepError, StorageError
from lockstep.journal import parse_line
from lockstep.journal.lookup import find_run, parent_of
from lockstep.journal.records import (
    RunRecords,
    damage_named,
    existing_checkpoints,
    newest_run,
    open_checkpoint,
    reported_metrics,
)
from lockstep.ledger import Goodput, read_ledger
from lockstep.metrics import AUTOMATIC_KEYS, flatten, look_up
from lockstep.retention import CheckpointRecord, worst_to_best
from lockstep.run_layout import JOURNAL_FILE, RETURN_FILE
from lockstep.storage import Storage, open_storage

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.fs

__all__ = ["Reproduction", "Result"]


class Reproduction(NamedTuple):
    """What running a part of a run again has shown.

    Attributes:
        path: the run.
        step: the ``training_iteration`` of the checkpoint that it was run again from; 0: it was run
            again from its beginning.
        steps: how many reports were compared, of every rank, bit by bit.
        states: how many checkpoints were compared, entry by entry.
        difference: the first difference; None if there is none.
    """

    path: str
    step: int
    steps: int
    states: int
    difference: str | None

    @property
    def ok(self) -> bool:
        """Whether everything was the same."""
        return self.difference is None

    def __str__(self) -> str:
        """One sentence."""
        start = f"step {self.step}" if self.step else "the beginning"
        after = f"{self.path}, run again from {start}:"
        if self.difference is not None:
            return f"{after} {self.difference}"
        states = f" and {self.states} checkpoint(s)" if self.states else ""
        return (
            f"{after} {self.steps} report(s) of every rank{states} are the same, bit by bit "
            "(times and speeds are not compared)."
        )


class Result:
    """The outcome of a run. ``fit()`` returns it; ``Result.from_path`` reads it on any machine.

    Attributes:
        metrics: the last row: the reported metrics and the automatic keys.
        reported_metrics: exactly the metrics reported last.
        metrics_by_rank: the metrics reported last, of every rank.
        checkpoint: the newest checkpoint, None if there is none.
        best_checkpoints: ``(checkpoint, metrics)`` pairs of the kept checkpoints, the best last.
        error: the exception that ended the run, None if there was none. Read in another process,
            it is a ``RemoteError`` with the same text unless its type is imported there.
        config: the ``train_loop_config``.
        state: ``"finished"``, ``"failed"``, ``"interrupted"``, ``"preempted"``, or
            ``"unfinished"`` if the driver died or still runs.
        attempts: one dict for each time the workers were started: when, on which processes.
        goodput: the share of each account in the run's time, such as ``compute`` and ``data``.
        guard: what ``RunConfig(guard=…)`` has warned of: report, rank, kind and text.
        parent: the run that this one was forked from, a ``Result``.
        resizes: one dict for each change of the number of workers: in which attempt, from, to.
    """

    def __init__(self, storage: Storage, returned: Returned | None = None) -> None:
        self._storage = storage
        self._returned = returned
        records = RunRecords(storage)
        with damage_named(self._journal):
            self._read(storage, records)

    def _read(self, storage: Storage, records: RunRecords) -> None:
        self.state: str = records.state
        config = records.run["config"]
        # A trial's config is the searched one; another run's is its train_loop_config.
        is_trial = "trial" in records.run
        self.config: dict[str, Any] = dict(
            config if is_trial else config.get("train_loop_config") or {}
        )
        self.metrics: dict[str, Any] = {}
        self.reported_metrics: dict[str, Any] = {}
        self.metrics_by_rank: list[dict[str, Any]] = []
        if records.last_report is not None:
            report = parse_line(records.last_report)
            self.reported_metrics = reported_metrics(report)
            self.metrics_by_rank = report["ranks"]
            self.metrics = records.row(report)
            if "done" not in self.reported_metrics:
                self.metrics["done"] = self.state == "finished"
        self._header = records.run
        self.guard: list[dict[str, Any]] = records.guard
        self._kept_return: dict[str, Any] | None = (records.end or {}).get("returned")
        self._failures: list[dict[str, Any]] = []
        if self.state == "failed" and records.failure is not None:
            self._failures = records.failure["errors"]
        self._load_errors()
        self.attempts = [records.attempts[number] for number in sorted(records.attempts)]
        self.resizes = _resizes(self.attempts)
        self._checkpoints = existing_checkpoints(storage, records.checkpoints)
        self._checkpoint_config = CheckpointConfig(**records.run["checkpoint_config"])
        for checkpoint in self._checkpoints:
            # Those of the last row's own checkpoint, as Ray has them.
            if checkpoint.validation is not None and checkpoint.index == records.rows:
                self.metrics.update(checkpoint.validation.get("metrics") or {})

    @classmethod
    def from_path(
        cls,
        path: str | os.PathLike[str],
        storage_filesystem: pyarrow.fs.FileSystem | None = None,
    ) -> Result:
        """Read a run's directory, or the newest run of an experiment's directory.

        Nothing that the directory contains is executed.

        Args:
            path: a directory or a URI; or, below the results root, the name of an experiment, or
                the name or trial id of a run.
            storage_filesystem: a ``pyarrow.fs.FileSystem`` that ``path`` is a path on.

        Raises:
            FileNotFoundError: there is no run.
            StorageError: the run cannot be read, or is damaged.
        """
        if storage_filesystem is None and isinstance(path, str) and not os.path.isabs(path):
            return cls(find_run(path))
        storage = open_storage(path, storage_filesystem)
        if not storage.exists(JOURNAL_FILE):
            storage = newest_run(storage)
        return cls(storage)

    @property
    def path(self) -> str:
        """The run's directory (a path on ``filesystem``)."""
        return self._storage.root

    @property
    def parent(self) -> Result | None:
        """The run that this one was forked from; None if it is no fork.

        Raises:
            FileNotFoundError: the parent's directory is gone.
        """
        storage = parent_of(self._storage, self._header)
        return None if storage is None else Result(storage)

    @property
    def forked_at(self) -> int | None:
        """The ``training_iteration`` of the parent at which this run was forked; None: no fork."""
        parent = self._header.get("parent")
        return None if parent is None else int(parent["step"])

    @property
    def log_dir(self) -> Path:
        """The run's directory; its ``parent`` is the experiment's."""
        return Path(self._storage.root)

    @property
    def filesystem(self) -> pyarrow.fs.FileSystem:
        """The Arrow filesystem of ``path``."""
        return self._storage.filesystem

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint."""
        if not self._checkpoints:
            return None
        return self._open(max(self._checkpoints, key=lambda record: record.id))

    @property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The checkpoints kept by score, with their metrics, from worst to best."""
        ranked = worst_to_best(self._checkpoints, self._checkpoint_config)
        return [(self._open(record), record.metrics) for record in ranked]

    def get_best_checkpoint(self, metric: str, mode: Literal["max", "min"]) -> Checkpoint | None:
        """The kept checkpoint whose row has the largest or smallest ``metric``.

        Of two equal ones, the later. None if no checkpoint is kept.

        Raises:
            RuntimeError: no row of a kept checkpoint has such a number; names those they have.
        """
        if mode not in ("max", "min"):
            raise ValueError(f"get_best_checkpoint(mode={mode!r}): expected 'max' or 'min'.")
        scored = [
            (value, record)
            for record in reversed(self._checkpoints)
            if isinstance(value := look_up(record.metrics, metric), (int, float)) and value == value
        ]
        if not self._checkpoints:
            return None
        if not scored:
            raise RuntimeError(
                f"get_best_checkpoint(metric={metric!r}): no kept checkpoint was reported with "
                f"such a number; the newest has {_numbers(self._checkpoints[-1].metrics)}."
            )
        pick = max if mode == "max" else min
        return self._open(pick(scored, key=lambda pair: pair[0])[1])

    @cached_property
    def return_value(self) -> Any:
        """What rank 0's training function returned; None if the run has not finished.

        Plain values, arrays and tensors are kept with the run, as data. Any other object is in the
        result of ``fit()`` only.

        Raises:
            LockstepError: the value is no plain data, and this is not the result of ``fit()``; or
                it could not be sent to the driver.
        """
        kept = self._kept_return
        if kept is None:
            return None
        if self._returned is not None:
            return unpack_returned(self._returned)
        with damage_named(self._journal):
            kind, type_name = str(kept["kind"]), str(kept["type"])
        if kind != "data":
            raise LockstepError(
                f"The training function of {self._storage.uri} returned a {type_name}, which is "
                "not plain data: only the result of fit() itself has it. Return plain values, "
                "arrays or tensors, or report the object in a checkpoint."
            )
        file = self._storage.path(RETURN_FILE)
        try:
            with damage_named(file):
                return unpack_data(self._storage.read_chunks(RETURN_FILE))
        except FileNotFoundError as error:
            raise StorageError(
                f"{file} is gone, and what the function returned with it."
            ) from error

    def replay(
        self,
        step: int,
        probe: Callable[[dict[str, Any]], Any] | None = None,
        *,
        rank: int = 0,
        pdb: bool = False,
        ignore: Collection[str] = (),
    ) -> Reproduction:
        """Go back to a step: run it again from the newest checkpoint before it, and look.

        The same data in the same order, with the same random numbers, as far as the function
        restores them (``train.State`` and ``get_dataset_shard()`` do); what it reports is compared
        with the journal, bit by bit. This executes code that is kept with the run.

        Args:
            step: the ``training_iteration`` of the report to go back to.
            probe: called with the variables of the function as that report is about to be sent;
                in the process of the rank, which is this one if there is only one.
            rank: whose variables.
            pdb: open the debugger there, on this terminal.
            ignore: names of metrics that are not compared.

        Raises:
            FileNotFoundError: there is nothing to run it again with.
            ValueError: the run has no such step or rank, or neither a checkpoint before it nor a
                beginning of its own.
        """
        run_again: Any = pkgutil.resolve_name("lockstep.testing.reproduce:replay")
        there = None if self._storage.is_local else self._storage.filesystem
        found: Reproduction = run_again(
            self._storage.root, there, step=step, probe=probe, rank=rank, pdb=pdb, ignore=ignore
        )
        return found

    @cached_property
    def goodput(self) -> Goodput:
        """Where the time went: account → its share of the time of all ranks; they add up to 1.

        ``goodput.attempts`` has the same of each attempt, ``goodput.ranks`` of each rank, and
        ``goodput.seconds`` the seconds. ``lockstep why`` says what to do about it.
        """
        with damage_named(self._journal):
            return read_ledger(RunRecords(self._storage)).goodput

    @cached_property
    def metrics_dataframe(self) -> pd.DataFrame:
        """One row a report, from every attempt; nested metrics as ``a/b`` columns.

        The reported metrics come first, then the automatic keys.

        The column ``attempt`` is the number of the attempt, and ``goodput`` the share of the time
        since the report before in which ranks computed (0 where a later attempt did the work
        again). A metric of such a name is in the column ``metrics/attempt`` or ``metrics/goodput``.
        """
        import pandas as pd

        records = RunRecords(self._storage)
        added = {"attempt", "goodput"}
        own: dict[str, None] = {}
        rows = []
        with damage_named(self._journal):
            reports = list(records.reports())
            goodput = read_ledger(records, reports).by_report()
            for report in reports:
                own.update(dict.fromkeys(_metric_columns(added, reported_metrics(report))))
                row = _metric_columns(added, records.row(report))
                shares = {"attempt": report["attempt"], "goodput": goodput[report["index"]]}
                rows.append({**row, **shares})
            frame = pd.DataFrame(rows)
        return frame[[*own, *(name for name in frame.columns if name not in own)]]

    @property
    def history_dataframe(self) -> pd.DataFrame:
        """``metrics_dataframe`` and, of a fork, the rows of its parents up to the fork before it.

        The column ``trial_id`` says whose row it is.

        Raises:
            FileNotFoundError: the directory of a parent is gone.
        """
        import pandas as pd

        parent = self.parent
        if parent is None:
            return self.metrics_dataframe
        own = parent.metrics_dataframe
        until = int(self._header["parent"]["reports"])
        before = parent.history_dataframe
        shared = before.iloc[: len(before) - len(own) + until]
        frames = [frame for frame in (shared, self.metrics_dataframe) if len(frame)]
        return pd.concat(frames, ignore_index=True) if frames else self.metrics_dataframe

    @cached_property
    def rank_dataframe(self) -> pd.DataFrame:
        """One row a report and rank: rank, attempt, training_iteration and the metrics.

        A metric with the name of one of these three is in ``metrics/rank`` and so on.
        """
        rows = (
            ((rank, report["attempt"], report["iteration"]), metrics)
            for report in RunRecords(self._storage).reports()
            for rank, metrics in enumerate(report["ranks"])
        )
        with damage_named(self._journal):
            return _dataframe(["rank", "attempt", "training_iteration"], rows)

    @cached_property
    def log_dataframe(self) -> pd.DataFrame:
        """One row a ``train.log()`` call: rank, attempt, step, time and the metrics.

        A metric with the name of one of these four is in ``metrics/rank`` and so on.
        """
        rows = (
            ((batch["rank"], batch["attempt"], row["step"], row["time"]), row["metrics"])
            for batch in RunRecords(self._storage).logs()
            for row in batch["rows"]
        )
        with damage_named(self._journal):
            return _dataframe(["rank", "attempt", "step", "time"], rows)

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
        # Dataframes are read again on demand. Errors are pickled as their records, because pickle
        # cannot handle an exception class that is local to a function.
        read_again = (
            "goodput",
            "metrics_dataframe",
            "rank_dataframe",
            "log_dataframe",
            "return_value",
        )
        left_out = (*read_again, "error", "worker_failures")
        state = {key: value for key, value in vars(self).items() if key not in left_out}
        failures = [{**item, "error": with_live(item["error"])} for item in self._failures]
        return {**state, "_failures": failures}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._load_errors()

    def _load_errors(self) -> None:
        self.worker_failures: dict[int, BaseException] = {}
        for item in self._failures:
            if item["rank"] not in self.worker_failures:
                self.worker_failures[item["rank"]] = unpack_error(item["error"])
        self.error: BaseException | None = next(iter(self.worker_failures.values()), None)

    @property
    def _journal(self) -> str:
        return self._storage.path(JOURNAL_FILE)

    def _open(self, record: CheckpointRecord) -> Checkpoint:
        return open_checkpoint(self._storage, record)


def _numbers(metrics: dict[str, Any]) -> str:
    flat = flatten(metrics)
    own = [repr(key) for key in flat if key not in AUTOMATIC_KEYS and is_number(flat[key])]
    return ", ".join(own) or "none of its own"


def _metric_columns(own: Container[str], metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics as columns; a metric with the name of an ``own`` column is renamed."""
    return {
        f"metrics/{key}" if key in own else key: value for key, value in flatten(metrics).items()
    }


def _dataframe(
    own: list[str], rows: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]
) -> pd.DataFrame:
    """A dataframe of rows, each with the values of the ``own`` columns and its metrics."""
    import pandas as pd

    filled = [
        {**dict(zip(own, values, strict=True)), **_metric_columns(own, metrics)}
        for values, metrics in rows
    ]
    return pd.DataFrame(filled, columns=None if filled else own)


def _resizes(attempts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sizes = [(attempt["attempt"], len(attempt["workers"])) for attempt in attempts]
    return [
        {"attempt": number, "from": before, "to": size}
        for (_, before), (number, size) in pairwise(sizes)
        if size != before
    ]
