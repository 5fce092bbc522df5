"""A run's work on storage that may take long, on threads that nobody has to wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from lockstep import settings
from lockstep.config import RunConfig
from lockstep.engine.loop import EventLoop
from lockstep.errors import LockstepError, StorageError
from lockstep.jobs import JobThread
from lockstep.retention import CheckpointRecord
from lockstep.train.driver.notes import unanswered_note
from lockstep.train.record.run import Run

__all__ = ["StorageQueue"]

SYNC_INTERVAL_S = 10.0
"""How old logs and tables on remote storage may get between two checkpoints."""

Later = Callable[[float, Callable[[], None]], None]
"""Call something after some seconds, unless the run has ended by then."""


class StorageQueue:
    """Publishes, deletes and copies, one job after the other. Used from the loop's thread.

    On local storage deletes have a queue of their own: a large checkpoint may take seconds to
    delete, and no report should wait for that.

    Storage may never answer. Then the threads are abandoned (``RunConfig(storage_timeout_s)``, or
    Ctrl-C once the user has been warned), and the run ends without it.
    """

    def __init__(
        self,
        run: Run,
        run_config: RunConfig,
        loop: EventLoop,
        later: Later,
        warn_once: Callable[[str, str], None],
    ) -> None:
        self._run = run
        self._loop = loop
        self._later = later
        self._warn_once = warn_once
        self._warning_s = run_config.hang_warning_s
        self._timeout_s = run_config.storage_timeout_s
        self._start_queues()
        self._all_due = 0.0
        self._draining = False
        self._give_up: Callable[[str], None] = lambda why: None
        self.abandoned = 0
        """How often storage was abandoned: what it still does may arrive at any time."""
        # Without warnings the user would never learn that storage is late.
        self.is_late = self._warning_s is None
        """The user knows that storage does not answer, so Ctrl-C may abandon it."""

    def _start_queues(self) -> None:
        self._thread = JobThread("lockstep-storage")
        self._delete_thread = JobThread("lockstep-delete")
        self._last_job: Future[Any] | None = None
        self._last_delete: Future[Any] | None = None
        self._sync_waits = False
        self._sync_all = False

    def submit(self, job: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run ``job`` after those before it."""
        self._last_job = self._thread.submit(job, *args)
        return self._last_job

    def delete(self, record: CheckpointRecord) -> None:
        """Delete an old checkpoint."""
        if self._run.storage.is_local:
            self._last_delete = self._delete_thread.submit(self._delete, record)
        else:
            self.submit(self._delete, record)

    def sync_soon(self) -> None:
        """Copy what has changed to remote storage."""
        self._sync_all = True
        self.sync_journal_soon()

    def sync_journal_soon(self) -> None:
        """Copy what is new in the journal to remote storage."""
        # One copy in the queue is enough: when its turn comes, it copies everything that is new.
        if not self._sync_waits:
            self._sync_waits = True
            self.submit(self._sync)

    def sync_regularly(self) -> None:
        """Copy what has changed now, and again until the run ends: the journal more often."""
        # A timer that is due as the run ends may be past cancelling.
        if self._draining:
            return
        now = time.monotonic()
        if now >= self._all_due:
            self._all_due = now + SYNC_INTERVAL_S
            self.sync_soon()
        else:
            self.sync_journal_soon()
        self._later(min(SYNC_INTERVAL_S, settings.sync_seconds()), self.sync_regularly)

    def abandon(self) -> None:
        """Do not wait for what is under way, and start new queues."""
        # A thread in a call that does not return cannot be stopped. As a daemon, it ends with the
        # process.
        self._thread.abandon()
        self._delete_thread.abandon()
        self._start_queues()
        self.abandoned += 1

    def drain(self, done: Callable[[], None]) -> None:
        """Call ``done`` when every job is done, on the loop; it does not wait here.

        Warns when that takes long, and abandons storage after the timeout. The loop keeps running,
        because other runs share it.
        """
        self._draining = True
        if self._pending() is None:
            done()
            return
        ended = False

        def finish() -> None:
            nonlocal ended
            if not ended:
                ended = True
                done()

        # Asked again after each job: a job may have queued another one.
        def finish_when_done() -> None:
            job = self._pending()
            if job is None:
                finish()
            else:
                job.add_done_callback(lambda _: self._loop.call_soon(finish_when_done))

        def give_up(why: str) -> None:
            if not ended:
                self.abandon()
                where = self._run.storage.uri
                self._run.abandon_storage(StorageError(f"{where} did not answer {why}."))
                finish()

        def warn() -> None:
            self.is_late = True
            assert self._warning_s is not None
            self._warn_once("end", unanswered_note(self._run.storage.uri, self._warning_s))

        self._give_up = give_up
        finish_when_done()
        if self._warning_s is not None:
            self._later(self._warning_s, warn)
        if self._timeout_s is not None:
            within = f"within {self._timeout_s:g} s"
            self._later(self._timeout_s, lambda: give_up(within))

    def give_up(self, why: str) -> None:
        """While ``drain`` waits: end it."""
        self._give_up(why)

    def close(self) -> None:
        """Forget what has not begun. Nothing is under way, unless an error is being handled."""
        self._thread.close(settings.stop_grace_seconds())
        self._delete_thread.close(settings.stop_grace_seconds())

    def _pending(self) -> Future[Any] | None:
        jobs = self._last_job, self._last_delete
        return next((job for job in jobs if job is not None and not job.done()), None)

    def _delete(self, record: CheckpointRecord) -> None:
        try:
            self._run.delete(record)
        except LockstepError as error:
            self._warn_once("delete", f"Could not delete the old checkpoint {record.name}: {error}")

    def _sync(self) -> None:
        # Reset before the copy: lines written during it need another one.
        self._sync_waits = False
        everything, self._sync_all = self._sync_all, False
        try:
            if everything:
                self._run.sync()
            else:
                self._run.sync_journal()
        except LockstepError as error:
            self._warn_once(
                "sync", f"Could not copy the journal to storage, will try again: {error}"
            )
