"""Calls on a thread of their own, one after the other, that can be given up."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

__all__ = ["Background"]


class Background:
    """Runs calls in order, on a daemon thread that lives only while there are some.

    Storage may keep a call waiting for ever. A daemon thread does not keep the process, and
    nobody has to wait for it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run ``call`` after those before it."""
        future: Future[Any] = Future()
        with self._lock:
            self._calls.append((future, lambda: call(*args)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return future

    def close(self, timeout_s: float) -> None:
        """Forget the calls that have not begun, and wait so long for the one that has."""
        self.abandon()
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def abandon(self) -> None:
        """Forget the calls that have not begun; the one that has may end whenever it does."""
        with self._lock:
            self._calls.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._thread = None
                    return
                future, call = self._calls.popleft()
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, call  # what was done is not kept while the next one is waited for
