"""Background uploads of one worker: in order, bounded, and loud when one fails."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["MAX_PENDING", "Uploader"]

MAX_PENDING = 2
"""How many uploads may be under way or waiting; the next ``submit`` waits."""


class Uploader:
    """Runs jobs one after the other in a thread that lives only while there are some."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._slots = threading.BoundedSemaphore(MAX_PENDING)
        self._thread: threading.Thread | None = None
        self._failed = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` after those before it. Waits while too many are pending."""
        self._slots.acquire()
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lockstep-upload", daemon=True)
            self._thread.start()

    def drain(self) -> bool:
        """Wait for every job; False if one has failed."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        return not self._failed

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if not self._failed:  # what comes after a lost checkpoint must not be committed
                    job()
            except Exception as error:
                self._failed = True
                self._on_error(error)
            finally:
                self._slots.release()
