"""Jobs that run in order on a thread of their own, and can be abandoned."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

__all__ = ["JobThread"]


class JobThread:
    """Runs jobs in order, on a daemon thread that exists only while there are jobs.

    A job may hang for ever, on a storage that does not answer. A daemon thread does not keep the
    process alive, and nobody must wait for it.

    Args:
        name: the thread's name.
        max_pending: how many jobs may run or wait; then ``submit`` blocks. None: any number.
        on_error: called on the thread with the first job's exception. The jobs after that one are
            skipped. Without it every job runs, and a failure is seen in the job's future only.
    """

    def __init__(
        self,
        name: str,
        max_pending: int | None = None,
        on_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._name = name
        self._max_pending = max_pending
        self._on_error = on_error
        self._failed = False
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = False
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run ``job(*args)`` after the jobs before it."""
        future: Future[Any] = Future()
        with self._changed:
            if self._max_pending is not None:
                self._changed.wait_for(self._has_room)
            self._waiting.append((future, lambda: job(*args)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return future

    def drain(self) -> bool:
        """Wait for every job; False if one has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)
        return not self._failed

    def abandon(self) -> None:
        """Drop the jobs that have not started. Does not wait for the running job."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Abandon, and wait up to ``timeout_s`` for the running job."""
        self.abandon()
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _has_room(self) -> bool:
        return len(self._waiting) + self._running < (self._max_pending or 0)

    def _run(self) -> None:
        while (next_job := self._next()) is not None:
            future, job = next_job
            if self._failed and self._on_error is not None:
                continue  # jobs build on each other: a later one must not run without this one
            try:
                result = job()
            except BaseException as error:
                self._failed = True
                future.set_exception(error)
                if self._on_error is not None:
                    self._on_error(error)
            else:
                future.set_result(result)
            del next_job, future, job  # a finished job's data must not live until the next one

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            self._running = False
            self._changed.notify_all()
            if not self._waiting:
                # Under the lock: a job submitted from now on starts a new thread.
                self._thread = None
                return None
            self._running = True
            return self._waiting.popleft()
