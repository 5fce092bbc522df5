"""The base of callbacks that send a run to a tracking service, which may be slow or down.

Rows wait here until the service accepts them: an outage that ends before the run loses no row. At
the end the service is tried until most of the callbacks' time is over. What it did not get is kept
in the run's directory; a restore and ``lockstep sync`` send it. Each kind of error is raised once,
so that the dispatcher reports it once.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from lockstep import settings
from lockstep.callback import TrialSnapshot
from lockstep.checkpoint import Checkpoint
from lockstep.errors import StorageError
from lockstep.metrics import flatten
from lockstep.trackers import undelivered
from lockstep.trackers.tracker_callback import TrackerCallback, TrackerProblem
from lockstep.trackers.undelivered import Row, Undelivered
from lockstep.trackers.values import Outcome, outcome_of, report_time

__all__ = ["LOG_PREFIX", "Row", "ServiceLoggerCallback", "TrackedRun", "refuse_arguments"]

RETRY_S = 10.0
"""How long a service is not called after it failed."""

END_RETRY_S = 0.5
"""How often a service that is down is called at the end of a run."""

END_SHARE = 0.8
"""The part of the time for callbacks, at the end of a run, in which the service is tried."""

MAX_ROWS = 10_000
"""The largest number of rows that wait for a service that is down. Rows of ``train.log()`` get
half of that, so that they never take the place of reports."""

LOG_PREFIX = "log/"
"""Rows of ``train.log()`` have steps of their own, so they have names of their own."""


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
    takes_logs: ClassVar[bool] = True
    uses_directory = False
    secrets: ClassVar[tuple[str, ...]] = ()
    """Attributes that are not pickled with the run's trainer."""

    _clock: Callable[[], float] = time.monotonic

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._followed: dict[str, _Followed] = {}
        self._raised: set[type[Exception]] = set()
        self._left_out = 0
        self._abandoned = threading.Event()
        self._giving_up = threading.Lock()

    def arguments(self) -> dict[str, Any]:
        """What ``lockstep sync`` creates this callback with. No secrets; plain values only."""
        return {}

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
        followed = self._followed.get(trial.trial_id)
        if followed is None:
            followed = self._followed[trial.trial_id] = _Followed(trial, self._clock)
            self._raised.clear()
            if trial.restored:
                self._take_undelivered(followed)
        followed.outcome = None
        self._attempt(followed.connect, self.open_run)

    def log_trial_result(
        self, iteration: int, trial: TrialSnapshot, result: dict[str, Any]
    ) -> None:
        """Keep the row for the next batch."""
        followed = self._followed.get(trial.trial_id)
        if followed is not None:
            followed.add(Row(iteration, report_time(result), self.values_of(result)))

    def log_trial_rows(self, trial_id: str, rank: int, rows: list[dict[str, Any]]) -> None:
        """Keep rows of ``train.log()`` for the next batch."""
        followed = self._followed.get(trial_id)
        if followed is not None:
            prefix = LOG_PREFIX if rank == 0 else f"{LOG_PREFIX}rank_{rank}/"
            for row in rows:
                followed.add_log(rank, row, prefix)

    def flush_batch(self) -> None:
        """Send the rows kept so far."""
        for followed in list(self._followed.values()):
            if self._clock() < followed.try_again:
                continue
            if followed.outcome is not None:
                self._end(followed)
            elif followed.rows:
                self._attempt(followed.send, self.open_run)

    def log_trial_save(self, trial: TrialSnapshot) -> None:
        """Upload ``trial.checkpoint``, if the user has chosen that."""
        followed = self._followed.get(trial.trial_id)
        run = None if followed is None else followed.run
        if run is not None and run.saves_checkpoints and trial.checkpoint is not None:
            self._attempt(_save, run, trial.checkpoint)

    def log_trial_end(self, trial: TrialSnapshot, failed: bool = False) -> None:
        """Send the remaining rows and record the outcome."""
        followed = self._followed.get(trial.trial_id)
        if followed is not None:
            followed.outcome = outcome_of(trial, failed)
            self._end(followed)

    def on_experiment_end(self, trials: Sequence[TrialSnapshot], **info: Any) -> None:
        """End the runs that are still open; keep what a service that is down did not get."""
        wait_s = self.end_timeout_s
        if wait_s is None:
            wait_s = settings.callback_flush_seconds()
        deadline = self._clock() + END_SHARE * wait_s
        with ExitStack() as errors:  # an error of one run must not keep the others open
            for followed in self._followed.values():
                followed.outcome = followed.outcome or "stopped"
            while True:
                for followed in list(self._followed.values()):
                    errors.callback(_raise, self._error_of(self._end, followed))
                down = [followed for followed in self._followed.values() if followed.is_down]
                if not down or self._clock() >= deadline or self._abandoned.wait(END_RETRY_S):
                    break
            text = self._give_up()
            errors.callback(_raise, None if text is None else TrackerProblem(text))

    def abandon(
        self,
        reports: Sequence[tuple[int, TrialSnapshot, dict[str, Any]]],
        ends: Sequence[tuple[TrialSnapshot, bool]],
    ) -> str | None:
        """Keep what the service did not get: the run's end does not wait for it any longer."""
        self._abandoned.set()
        for report in reports:
            with suppress(OverflowError):
                self.log_trial_result(*report)
        for trial, failed in ends:
            if trial.trial_id in self._followed:
                self._followed[trial.trial_id].outcome = outcome_of(trial, failed)
        return self._give_up()

    def deliver(self, kept: Undelivered) -> None:
        """Send what an earlier driver kept, and record the outcome.

        Raises:
            Exception: the service's own error.
        """
        followed = _Followed(kept.trial, self._clock)
        followed.rows.extend(kept.rows)
        followed.outcome = kept.outcome
        followed.end(self.open_run)

    def _end(self, followed: _Followed) -> None:
        try:
            self._attempt(followed.end, self.open_run)
        finally:
            if followed.ended:
                self._left_out += followed.left_out
                self._followed.pop(followed.trial.trial_id, None)
                if followed.kept_in is not None:
                    with suppress(OSError):
                        os.unlink(followed.kept_in)

    def _give_up(self) -> str | None:
        """Keep the rows of the runs that could not be ended; return one sentence about them."""
        with self._giving_up:
            unfinished, self._followed = list(self._followed.values()), {}
            left_out, self._left_out = self._left_out, 0
        name, texts = type(self).__name__, []
        left_out += sum(followed.left_out for followed in unfinished)
        if left_out:
            texts.append(
                f"{name} left out {_rows(left_out)}, which its service refused or could not take "
                "in time; progress.csv has every report."
            )
        if unfinished:
            rows = sum(len(followed.rows) for followed in unfinished)
            runs = len(unfinished)
            whose = "the run's outcome" if runs == 1 else f"the outcomes of {runs} runs"
            why = unfinished[0].why if unfinished[0].is_down else ""  # else it was raised already
            texts.append(f"{name}: {_rows(rows)} and {whose} are not at the service{why}")
            kept = [path for path in map(self._keep, unfinished) if path is not None]
            place = kept[0] if len(kept) == 1 else os.path.dirname(kept[0]) if kept else None
            texts[-1] += (
                "; progress.csv has every report."
                if place is None
                else f". They are kept with the run: send them later with: lockstep sync {place}"
            )
        return " ".join(texts) or None

    def _keep(self, followed: _Followed) -> str | None:
        """Write what the service lacks of a run; return the run's directory, if it exists."""
        outcome, rows = followed.outcome or "stopped", followed.waiting()
        tracker = type(self).__name__
        lacks = Undelivered(tracker, self.arguments(), followed.trial, outcome, rows)
        return None if undelivered.keep(lacks) is None else followed.trial.path

    def _take_undelivered(self, followed: _Followed) -> None:
        """Send what an earlier driver could not send, before anything new."""
        path = os.path.join(
            followed.trial.path, undelivered.file_name(type(self).__name__, self.arguments())
        )
        with suppress(OSError):
            data = Path(path).read_bytes()
            followed.rows.extend(undelivered.read(data, followed.trial.path).rows)
            followed.kept_in = path

    def _error_of(self, action: Callable[..., object], *arguments: Any) -> Exception | None:
        try:
            action(*arguments)
        except Exception as error:
            return error
        return None

    def _attempt(self, action: Callable[..., object], *arguments: Any) -> None:
        try:
            action(*arguments)
        except Exception as error:
            # During an outage every call fails: each kind of error is reported once.
            if type(error) in self._raised:
                return
            self._raised.add(type(error))
            if not _is_outage(error):
                raise
            raise TrackerProblem(
                f"{type(self).__name__} cannot reach its service ({_describe(error)}). Training "
                "continues; reports wait, and are sent when the service answers."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name not in _OF_THIS_DRIVER}
        return {**kept, **dict.fromkeys(self.secrets)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()


_OF_THIS_DRIVER = ("_followed", "_raised", "_left_out", "_abandoned", "_giving_up")


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


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def _is_outage(error: BaseException | None) -> bool:
    """Whether the service could not be reached, in which case another attempt may help."""
    while error is not None:
        if isinstance(error, OSError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class _Followed:
    """A trial, its run once that is open, and the rows that wait to be sent."""

    def __init__(self, trial: TrialSnapshot, clock: Callable[[], float]) -> None:
        self.trial = trial
        self._clock = clock
        self.run: TrackedRun | None = None
        self.rows: deque[Row] = deque()
        self.try_again = 0.0
        self.left_out = 0
        """The number of rows that the service will never get."""
        self.outcome: Outcome | None = None
        """How the trial ended; None: it has not."""
        self.ended = False
        """Whether the service has every row and the outcome."""
        self.kept_in: str | None = None
        """The file from which an earlier driver's rows were taken."""
        self._problem: Exception | None = None
        self._was_full = False
        self._logged: Counter[int] = Counter()

    @property
    def is_down(self) -> bool:
        """Whether the last attempt did not reach the service."""
        return _is_outage(self._problem)

    @property
    def why(self) -> str:
        """The last error, in parentheses; empty if there was none."""
        return "" if self._problem is None else f" ({_describe(self._problem)})"

    def waiting(self) -> list[Row]:
        """A copy of the waiting rows, while another thread may be sending them."""
        while True:
            with suppress(RuntimeError):  # changed during the copy
                return list(self.rows)

    def add(self, row: Row) -> None:
        if len(self.rows) < MAX_ROWS:
            self.rows.append(row)
            return
        self.left_out += 1
        if not self._was_full:
            self._was_full = True
            raise OverflowError(
                f"{MAX_ROWS} rows wait for the service, and later rows are not kept for it; "
                "progress.csv has every report"
            )

    def add_log(self, rank: int, row: dict[str, Any], prefix: str) -> None:
        """Keep a row of ``train.log()``: its numbers, under names of their own."""
        step = row["step"] if row["step"] is not None else self._logged[rank]
        self._logged[rank] += 1
        numbers = {
            f"{prefix}{key}": value
            for key, value in flatten(row["metrics"]).items()
            if isinstance(value, (int, float))
        }
        if numbers and len(self.rows) < MAX_ROWS // 2:
            self.rows.append(Row(int(step), row["time"], numbers, True))

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

    def end(self, open_run: Callable[[TrialSnapshot], TrackedRun]) -> None:
        assert self.outcome is not None
        while self.rows or self.run is None:
            before = len(self.rows)
            try:
                self.send(open_run)
            except Exception as error:
                if len(self.rows) == before:
                    # A service that can be reached, and still takes no row, takes the outcome.
                    if self.run is not None and not _is_outage(error):
                        self.run.end(self.outcome)
                        self.left_out += len(self.rows)
                        self.rows.clear()
                        self.ended = True
                    raise
        with self._pausing_after_error():
            self.run.end(self.outcome)
        self.ended = True

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
                    self.left_out += 1
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
        except Exception as error:
            self._problem = error
            self.try_again = self._clock() + RETRY_S
            raise


def _accepts(run: TrackedRun, row: Row) -> bool:
    try:
        run.log([row])
    except Exception:
        return False
    return True
