"""The base of callbacks that send a run to a tracking service, which may be slow or down.

Rows wait here until the service accepts them: an outage that ends before the run loses no row.
Each kind of error is raised once, so that the dispatcher reports it once. At the end of the
experiment one error has the number of missing rows.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from lockstep.callback import TrialSnapshot
from lockstep.checkpoint import Checkpoint
from lockstep.errors import LockstepError, StorageError
from lockstep.trackers.tracker_callback import TrackerCallback
from lockstep.trackers.values import Outcome, outcome_of, report_time

__all__ = ["Row", "ServiceLoggerCallback", "TrackedRun", "refuse_arguments"]

RETRY_S = 10.0
"""How long a service is not called after it failed."""

MAX_ROWS = 10_000
"""The largest number of rows that wait for a service that is down."""


class Row(NamedTuple):
    """One report."""

    step: int
    time: float
    values: dict[str, Any]


class TrackedRun(ABC):
    """One run at the service. Used from one thread; each method may take long, or raise."""

    rows_at_once: ClassVar[int] = 100
    saves_checkpoints = False
    """Whether checkpoints are uploaded."""

    @abstractmethod
    def log(self, rows: list[Row]) -> None:
        """Send rows. After an exception the same rows are sent again."""

    @abstractmethod
    def save(self, name: str, directory: str) -> None:
        """Upload the checkpoint ``name``, whose files are in ``directory``."""

    @abstractmethod
    def end(self, outcome: Outcome) -> None:
        """Record the outcome, and release everything."""


class ServiceLoggerCallback(TrackerCallback, ABC):
    """Follows each trial with a ``TrackedRun``; opening one is retried after a failure.

    A row that the service refuses while it accepts other rows is left out.
    """

    batched: ClassVar[bool] = True
    uses_directory = False
    secrets: ClassVar[tuple[str, ...]] = ()
    """Attributes that are not pickled with the run's trainer."""

    _clock: Callable[[], float] = time.monotonic

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}
        self._raised: set[type[Exception]] = set()
        self._missing = _Missing()

    @abstractmethod
    def open_run(self, trial: TrialSnapshot) -> TrackedRun:
        """Create the trial's run at the service, or resume it where ``trial.restored``.

        After an exception the next call has ``trial.restored`` set: the failed call may have
        created the run.
        """

    @abstractmethod
    def values_of(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a result to send to the service."""

    def log_trial_start(self, trial: TrialSnapshot) -> None:
        """Create the run at the service, or resume it."""
        if trial.trial_id not in self._followed:
            self._followed[trial.trial_id] = _Followed(trial, self._clock)
            self._raised.clear()
        self._attempt(self._followed[trial.trial_id].connect, self.open_run)

    def log_trial_result(
        self, iteration: int, trial: TrialSnapshot, result: dict[str, Any]
    ) -> None:
        """Keep the row for the next batch."""
        followed = self._followed.get(trial.trial_id)
        if followed is not None:
            followed.add(Row(iteration, report_time(result), self.values_of(result)))

    def flush_batch(self) -> None:
        """Send the rows kept so far."""
        for followed in self._followed.values():
            if followed.rows and self._clock() >= followed.try_again:
                self._attempt(followed.send, self.open_run)

    def log_trial_save(self, trial: TrialSnapshot) -> None:
        """Upload ``trial.checkpoint``, if the user has chosen that."""
        followed = self._followed.get(trial.trial_id)
        run = None if followed is None else followed.run
        if run is not None and run.saves_checkpoints and trial.checkpoint is not None:
            self._attempt(_save, run, trial.checkpoint)

    def log_trial_end(self, trial: TrialSnapshot, failed: bool = False) -> None:
        """Send the remaining rows and record the outcome."""
        followed = self._followed.pop(trial.trial_id, None)
        if followed is not None:
            self._end(followed, outcome_of(trial, failed))

    def on_experiment_end(self, trials: Sequence[TrialSnapshot], **info: Any) -> None:
        """End the runs of trials that were interrupted or never resumed."""
        with ExitStack() as ends:  # ends every run, even if ending one of them fails
            ends.callback(self._raise_if_rows_are_missing)
            while self._followed:
                _, followed = self._followed.popitem()
                ends.callback(self._end, followed, "stopped")

    def _end(self, followed: _Followed, outcome: Outcome) -> None:
        why = ""
        try:
            self._attempt(followed.end, self.open_run, outcome)
        except Exception as error:
            if not followed.missing:
                raise
            why = f" ({type(error).__name__}: {error})"
        if followed.missing:
            self._missing.add(followed.missing, why)

    def _raise_if_rows_are_missing(self) -> None:
        missing, self._missing = self._missing, _Missing()
        if missing.runs:
            raise LockstepError(str(missing))

    def _attempt(self, action: Callable[..., object], *arguments: Any) -> None:
        try:
            action(*arguments)
        except Exception as error:
            # During an outage every call fails: each kind of error is reported once.
            if type(error) not in self._raised:
                self._raised.add(type(error))
                raise

    def __getstate__(self) -> dict[str, Any]:
        kept = {**vars(self), "_followed": {}, "_raised": set(), "_missing": _Missing()}
        return {**kept, **dict.fromkeys(self.secrets)}


def refuse_arguments(
    who: str, given: Mapping[str, Any], reserved: Collection[str], what: str
) -> None:
    """Raise ValueError if the user gave an argument that the callback itself chooses."""
    for name in reserved:
        if name in given:
            raise ValueError(
                f"{who}({name}={given[name]!r}): the callback chooses it, so that each trial has "
                f"one {what}; leave it out."
            )


def _save(run: TrackedRun, checkpoint: Checkpoint) -> None:
    if checkpoint.path is None:
        return
    # CheckpointConfig(num_to_keep=…) may have deleted the checkpoint in the meantime.
    with suppress(FileNotFoundError, StorageError), checkpoint.as_directory() as directory:
        run.save(Path(checkpoint.path).name, directory)


@dataclass
class _Missing:
    """The reports that the service lacks of ended runs; one error counts them all."""

    runs: int = 0
    reports: int = 0
    why: str = ""

    def add(self, reports: int, why: str) -> None:
        self.runs += 1
        self.reports += reports
        self.why = self.why or why

    def __str__(self) -> str:
        if self.runs == 1:
            whose, where = "of the run's reports", "progress.csv has every report"
        else:
            whose = f"reports of {self.runs} runs"
            where = "the progress.csv of each run has every report"
        return f"{self.reports} {whose} are not at the service{self.why}; {where}"


class _Followed:
    """A trial, its run once that is open, and the rows that wait to be sent."""

    def __init__(self, trial: TrialSnapshot, clock: Callable[[], float]) -> None:
        self.trial = trial
        self._clock = clock
        self.run: TrackedRun | None = None
        self.rows: deque[Row] = deque()
        self.try_again = 0.0
        self._left_out = 0
        self._was_full = False

    @property
    def missing(self) -> int:
        """The number of rows that the service does not have."""
        return self._left_out + len(self.rows)

    def add(self, row: Row) -> None:
        if len(self.rows) < MAX_ROWS:
            self.rows.append(row)
            return
        self._left_out += 1
        if not self._was_full:
            self._was_full = True
            raise OverflowError(
                f"{MAX_ROWS} rows wait for the service, and later rows are not kept for it; "
                "progress.csv has every report"
            )

    def connect(self, open_run: Callable[[TrialSnapshot], TrackedRun]) -> TrackedRun:
        if self.run is None:
            try:
                with self._pausing_after_error():
                    self.run = open_run(self.trial)
            except Exception:
                self.trial = replace(self.trial, restored=True)
                raise
        return self.run

    def send(self, open_run: Callable[[TrialSnapshot], TrackedRun]) -> None:
        run = self.connect(open_run)
        while self.rows:
            with self._pausing_after_error():
                self._send_batch(run)

    def end(self, open_run: Callable[[TrialSnapshot], TrackedRun], outcome: Outcome) -> None:
        try:
            while self.rows or self.run is None:
                before = len(self.rows)
                try:
                    self.send(open_run)
                except Exception:
                    if len(self.rows) == before:
                        raise
        finally:
            if self.run is not None:
                self.run.end(outcome)

    def _send_batch(self, run: TrackedRun) -> None:
        count = min(len(self.rows), run.rows_at_once)
        try:
            run.log(list(islice(self.rows, count)))
        except Exception:
            self._send_one_by_one(run, count)
            raise
        for _ in range(count):
            self.rows.popleft()

    def _send_one_by_one(self, run: TrackedRun, count: int) -> None:
        """After a failed batch, send its rows singly: a bad row must not delay the others.

        A row is left out if the service refuses it before and after it accepts another row. A
        service that accepts no row is down: every row waits for the next attempt.
        """
        for _ in range(count):
            if not self.rows:
                return
            if not _accepts(run, self.rows[0]):
                if not self._sent_another(run):
                    return
                if not _accepts(run, self.rows[0]):
                    self._left_out += 1
            self.rows.popleft()

    def _sent_another(self, run: TrackedRun) -> bool:
        for index in (1, -1):  # bad rows often come in sequence: then the newest may be good
            if len(self.rows) > 1 and _accepts(run, self.rows[index]):
                del self.rows[index]
                return True
        return False

    @contextmanager
    def _pausing_after_error(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.try_again = self._clock() + RETRY_S
            raise


def _accepts(run: TrackedRun, row: Row) -> bool:
    try:
        run.log([row])
    except Exception:
        return False
    return True
