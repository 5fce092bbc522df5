"""The base of callbacks that hand a run to a tracking service which may be slow, or down.

Rows wait here until the service takes them, so an outage costs none of them if it ends before the
run does. What goes wrong is raised once, for the dispatcher to tell; what follows is the same news,
until the end says how many rows are missing.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from lockstep.callback import TrialSnapshot
from lockstep.checkpoint import Checkpoint
from lockstep.errors import LockstepError
from lockstep.trackers.tracker_callback import TrackerCallback
from lockstep.trackers.values import Outcome, outcome_of, report_time

__all__ = ["Row", "ServiceLoggerCallback", "TrackedRun"]

RETRY_S = 10.0
"""How long to leave a service alone that did not answer."""

MAX_ROWS = 10_000
"""How many rows wait for a service that is down."""


class Row(NamedTuple):
    """One report."""

    step: int
    time: float
    values: dict[str, Any]


class TrackedRun(ABC):
    """One run at the service. Used from one thread; each method may take long, or raise."""

    rows_at_once: ClassVar[int] = 100

    @abstractmethod
    def log(self, rows: list[Row]) -> None:
        """Hand over rows. After an exception they all come again."""

    @abstractmethod
    def end(self, outcome: Outcome) -> None:
        """Say how it ended and release everything."""

    @abstractmethod
    def save(self, checkpoint: Checkpoint) -> None:
        """Upload a checkpoint, if that was asked for."""


class ServiceLoggerCallback(TrackerCallback, ABC):
    """Follows each trial with a ``TrackedRun``; where opening one failed, it is tried again.

    A row that the service refuses twice, while it takes a later one, is left out.
    """

    batched: ClassVar[bool] = True
    uses_directory = False
    secrets: ClassVar[tuple[str, ...]] = ()
    """Attributes that do not go to disk with the run's trainer."""

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}
        self._told: set[type[Exception]] = set()
        self._missing = _Missing()

    @abstractmethod
    def open_run(self, trial: TrialSnapshot) -> TrackedRun:
        """Begin a run at the service, or go on with it where ``trial.restored``.

        After an exception the trial comes again as a restored one: its run may be there by then.
        """

    @abstractmethod
    def values_of(self, result: dict[str, Any]) -> dict[str, Any]:
        """What of a result goes to the service."""

    def log_trial_start(self, trial: TrialSnapshot) -> None:
        """Begins the run at the service, or goes on with it."""
        if trial.trial_id not in self._followed:
            self._followed[trial.trial_id] = _Followed(trial)
            self._told.clear()
        self._attempt(self._followed[trial.trial_id].connect, self.open_run)

    def log_trial_result(
        self, iteration: int, trial: TrialSnapshot, result: dict[str, Any]
    ) -> None:
        """Takes the row; it is sent with the next batch."""
        followed = self._followed.get(trial.trial_id)
        if followed is not None:
            followed.add(Row(iteration, report_time(result), self.values_of(result)))

    def flush_batch(self) -> None:
        """Sends the rows taken so far."""
        for followed in self._followed.values():
            if followed.rows and time.monotonic() >= followed.try_again:
                self._attempt(followed.send, self.open_run)

    def log_trial_save(self, trial: TrialSnapshot) -> None:
        """Uploads ``trial.checkpoint``, if that was asked for."""
        followed = self._followed.get(trial.trial_id)
        if followed is not None and followed.run is not None and trial.checkpoint is not None:
            self._attempt(followed.run.save, trial.checkpoint)

    def log_trial_end(self, trial: TrialSnapshot, failed: bool = False) -> None:
        """Sends what is left and says how it ended."""
        followed = self._followed.pop(trial.trial_id, None)
        if followed is not None:
            self._end(followed, outcome_of(trial, failed))

    def on_experiment_end(self, trials: Sequence[TrialSnapshot], **info: Any) -> None:
        """Ends the runs of trials that were interrupted or paused for good."""
        with ExitStack() as ends:  # every one of them, whichever fails
            ends.callback(self._tell_what_is_missing)
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

    def _tell_what_is_missing(self) -> None:
        missing, self._missing = self._missing, _Missing()
        if missing.runs:
            raise LockstepError(str(missing))

    def _attempt(self, action: Callable[..., object], *arguments: Any) -> None:
        try:
            action(*arguments)
        except Exception as error:
            if type(error) not in self._told:
                self._told.add(type(error))
                raise

    def __getstate__(self) -> dict[str, Any]:
        kept = {**vars(self), "_followed": {}, "_told": set(), "_missing": _Missing()}
        return {**kept, **dict.fromkeys(self.secrets)}


@dataclass
class _Missing:
    """What the runs that have ended lack, told once for all of them."""

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
    """A trial, its run once that is open, and the rows that were not sent yet."""

    def __init__(self, trial: TrialSnapshot) -> None:
        self.trial = trial
        self.run: TrackedRun | None = None
        self.rows: deque[Row] = deque()
        self.try_again = 0.0
        self._at_once: int | None = None
        self._refused_alone = False
        self._left_out = 0
        self._was_full = False

    @property
    def missing(self) -> int:
        """How many rows the service does not have."""
        return self._left_out + len(self.rows)

    def add(self, row: Row) -> None:
        if len(self.rows) < MAX_ROWS:
            self.rows.append(row)
            return
        self._left_out += 1
        if not self._was_full:
            self._was_full = True
            raise OverflowError(
                f"{MAX_ROWS} rows wait for the service and no more are kept for it; progress.csv "
                "has every report"
            )

    def connect(self, open_run: Callable[[TrialSnapshot], TrackedRun]) -> TrackedRun:
        if self.run is None:
            try:
                with self._leaving_alone_on_error():
                    self.run = open_run(self.trial)
            except Exception:
                self.trial = replace(self.trial, restored=True)
                raise
        return self.run

    def send(self, open_run: Callable[[TrialSnapshot], TrackedRun]) -> None:
        run = self.connect(open_run)
        while self.rows:
            with self._leaving_alone_on_error():
                self._send_some(run)

    def end(self, open_run: Callable[[TrialSnapshot], TrackedRun], outcome: Outcome) -> None:
        try:
            while self.rows or self.run is None:
                try:
                    self.send(open_run)
                except Exception:
                    if self.run is None or self._refused_alone:
                        raise
        finally:
            if self.run is not None:
                self.run.end(outcome)

    def _send_some(self, run: TrackedRun) -> None:
        """Send as many rows as may go at once; after a failure one, then more and more again."""
        count = min(len(self.rows), self._at_once or run.rows_at_once)
        try:
            run.log([self.rows[index] for index in range(count)])
        except Exception:
            self._at_once, self._refused_alone = 1, count == 1
            if count > 1 or len(self.rows) == 1:
                raise
            self._log_another(run)
            try:
                run.log([self.rows[0]])  # the service may have come back in between
            except Exception:
                self._left_out += 1
        else:
            if self._at_once is not None:
                self._at_once = 2 * count if 2 * count < run.rows_at_once else None
        for _ in range(count):
            self.rows.popleft()

    def _log_another(self, run: TrackedRun) -> None:
        """Send the second row, or else the last; raises where it is not about the rows."""
        try:
            run.log([self.rows[1]])
        except Exception:
            if len(self.rows) == 2:
                raise
            run.log([self.rows[-1]])
            del self.rows[-1]
        else:
            del self.rows[1]

    @contextmanager
    def _leaving_alone_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.try_again = time.monotonic() + RETRY_S
            raise
