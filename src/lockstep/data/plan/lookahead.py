"""Operations in other processes, begun on the next rows before those before them are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Thread

from lockstep.data.plan.unit import Pending, Piece, Reader

__all__ = ["in_order"]

_BYTES = 32 << 20
"""How many bytes of rows are sent to processes before they are needed, at most; but two pieces."""


def in_order(pending: Iterator[Pending], reader: Reader) -> Iterator[Piece]:
    """The pieces in order, without empty ones.

    Where their operations run in processes, those of the next pieces are begun at the same time,
    so that no process waits for the others at the end of a piece. Closing the iterator ends them.
    """
    for item in pending:
        if item.processes:
            # From here on the rest of the sequence: later pieces have the same operations.
            yield from _ahead(item, pending, reader)
            return
        piece = item.finish()
        del item  # free the rows before the operations while the user has those after
        if piece.table.num_rows:
            yield piece


def _ahead(first: Pending, pending: Iterator[Pending], reader: Reader) -> Iterator[Piece]:
    """The pieces from the first one on whose operations run in processes."""
    begun: deque[tuple[Future[Piece], int]] = deque()
    threads: deque[Thread] = deque()
    size = 0
    item: Pending | None = first
    try:
        while item is not None or begun:
            # One piece more than there are processes: each may be so small that one does it all.
            while item is not None and (
                len(begun) < 2 or (len(begun) <= first.processes and size + item.size <= _BYTES)
            ):
                future, thread = _started(item)
                begun.append((future, item.size))
                threads.append(thread)
                size += item.size
                del future
                item = _next(pending)
            future, done = begun.popleft()
            try:
                piece = future.result()
            finally:
                del future  # it has the error, whose traceback has this frame
            threads.popleft().join()
            size -= done
            if piece.table.num_rows:
                yield piece
            del piece
    finally:
        begun.clear()
        # In this order: a thread may wait for a process, and only cancelling ends that wait.
        reader.cancel()
        while threads:
            threads.popleft().join()


def _started(item: Pending) -> tuple[Future[Piece], Thread]:
    """Finish the rows in a thread. A daemon: a program that exits does not wait for the rows."""
    future: Future[Piece] = Future()
    name = "lockstep-data-map"
    thread = Thread(target=_finish, args=(item.finish, future), name=name, daemon=True)
    thread.start()
    return future, thread


def _finish(finish: Callable[[], Piece], future: Future[Piece]) -> None:
    try:
        piece = finish()
    except BaseException as error:
        future.set_exception(error)
        del finish, future  # the error's traceback has this frame
    else:
        future.set_result(piece)


def _next(pending: Iterator[Pending]) -> Pending | None:
    """The next rows; an error in reading them is raised in their place, after the rows before."""
    try:
        return next(pending, None)
    except Exception as error:
        caught = error

        def fail() -> Piece:
            raise caught

        return Pending(fail, 0, 0)
