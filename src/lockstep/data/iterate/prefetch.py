"""An iterator whose results a thread makes before they are needed, within bounds."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

__all__ = ["Prefetcher"]

T = TypeVar("T")


class _Shared(Generic[T]):
    """State shared by the consumer and the thread.

    The thread holds this object and never the consumer, so that dropping the consumer ends it.
    """

    def __init__(self, items: int, size: int) -> None:
        self.most_items = items
        self.most_size = size
        self.changed = threading.Condition()
        self.ready: deque[tuple[T, int]] = deque()
        self.size = 0
        self.ended = False
        self.stopped = False
        self.error: BaseException | None = None

    def put(self, item: T, size: int) -> bool:
        """Wait for room and add an item; False if the consumer has stopped."""
        with self.changed:
            while not self.stopped and self._is_full(size):
                self.changed.wait()
            if self.stopped:
                return False
            self.ready.append((item, size))
            self.size += size
            self.changed.notify_all()
            return True

    def _is_full(self, size: int) -> bool:
        # One item always fits, or an item above the limit would wait for ever.
        if not self.ready:
            return False
        return len(self.ready) >= self.most_items or self.size + size > self.most_size

    def end(self, error: BaseException | None) -> None:
        with self.changed:
            # A reader that was stopped may fail because of that; nobody asked for the result.
            self.ended, self.error = True, None if self.stopped else error
            self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.ready.clear()
            self.size = 0
            self.changed.notify_all()


class Prefetcher(Generic[T]):
    """The results of ``make()``, made by a thread before they are needed.

    The thread waits while ``items`` results or ``size`` bytes are ready; a single result is allowed
    to be larger. An error is raised in place of its result. ``close()``, or dropping the last
    reference, ends the thread and frees the results that are ready.
    """

    def __init__(
        self,
        make: Callable[[], Iterator[T]],
        size_of: Callable[[T], int],
        *,
        items: int,
        size: int,
        name: str,
    ) -> None:
        self._shared: _Shared[T] = _Shared(items, size)
        self._thread = threading.Thread(
            target=_work, args=(make, size_of, self._shared), name=name, daemon=True
        )
        _running.add(self)
        self._thread.start()

    def __iter__(self) -> Prefetcher[T]:
        return self

    def __next__(self) -> T:
        shared = self._shared
        with shared.changed:
            while not shared.ready and not shared.ended and not shared.stopped:
                shared.changed.wait()
            if shared.ready:
                item, size = shared.ready.popleft()
                shared.size -= size
                shared.changed.notify_all()
                return item
            # Raised once: the next call is the end, and the traceback's memory is freed.
            error, shared.error = shared.error, None
        if error is not None:
            raise error
        raise StopIteration

    def stop(self) -> None:
        """Ask the thread to end, and end a ``next()`` that waits."""
        self._shared.stop()

    def close(self) -> None:
        """End the thread and wait for it."""
        self.stop()
        # The garbage collector may drop the consumer in the prefetching thread itself.
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join()

    def __del__(self) -> None:
        # After a fork the thread runs in the parent only.
        if self._thread.is_alive():
            self.close()


# Weak: a prefetcher that is only listed here must still end when it is dropped.
_running: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End all threads: one that decodes while the interpreter shuts down could crash it."""
    for prefetcher in list(_running):
        prefetcher.close()


def _work(make: Callable[[], Iterator[T]], size_of: Callable[[T], int], shared: _Shared[T]) -> None:
    error: BaseException | None = None
    source: Iterator[T] | None = None
    try:
        source = make()
        for item in source:
            if not shared.put(item, size_of(item)):
                break
            # Else this frame would hold the item while the next one is made.
            del item
    except BaseException as caught:
        error = caught
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()
        shared.end(error)
        error = None  # its traceback has this frame, and would keep everything alive
