"""What the groups of all engines share whose workers are processes with a connection each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.engine.base import (
    EngineEvent,
    WorkerExited,
    WorkerGroup,
    WorkerMessage,
    WorkerPreempted,
)
from lockstep.engine.forkserver import Ended, Started
from lockstep.engine.loop import EventLoop
from lockstep.engine.wire import Connection, Terminating, make_frame

__all__ = ["ConnectedGroup"]


class ConnectedGroup(WorkerGroup):
    """Workers that are processes, each with a connection to the driver."""

    def __init__(self, size: int, loop: EventLoop, emit: Callable[[EngineEvent], None]) -> None:
        self._loop = loop
        self._emit = emit
        self._alive = set(range(size))
        self._pids: dict[int, int] = {}
        self._workers: dict[int, Connection] = {}
        self._garbage: dict[int, str] = {}
        self._packed: tuple[Any, bytes] = (object(), b"")

    @abstractmethod
    def _lose(self, rank: int, exitcode: int | None, detail: str) -> None:
        """Report an end of which the worker's own fork server has not reported."""

    def _frame(self, message: Any) -> bytes:
        # The same answer goes to every rank, one after the other: it is pickled once.
        if message is not self._packed[0]:
            self._packed = (message, make_frame(message))
        return self._packed[1]

    def _forward(self, rank: int) -> Callable[[Any], None]:
        emit = self._emit

        def forward(message: Any) -> None:
            # type(), not isinstance: every report passes here.
            if type(message) is Started:
                self._pids[rank] = message.pid
            elif type(message) is Terminating:
                emit(WorkerPreempted(rank))
            else:
                emit(WorkerMessage(rank, message))

        return forward

    def _pids_of(self, ranks: set[int]) -> Mapping[int, int]:
        return {rank: self._pids[rank] for rank in sorted(ranks & self._alive & self._pids.keys())}

    def _note_garbage(self, rank: int, what: str) -> None:
        self._garbage[rank] = (
            f"its connection to the driver carried {what}; a process that it forked may have "
            "written to a file that is not its own"
        )

    def _end_of(self, message: Ended) -> WorkerExited:
        """An exit that the fork server has reported."""
        if message.rank in self._garbage:
            # The signal is this engine's own, and says nothing.
            return WorkerExited(message.rank, None, self._garbage[message.rank])
        return WorkerExited(*message)

    def _abandon_unstarted(self, exitcode: int) -> None:
        """Report workers that are not started yet as ended, instead of waiting for room or imports.

        A worker that is forked later finds its connection closed, and ends.
        """
        for rank in sorted(self._alive):
            if rank in self._workers:
                self._workers[rank].drain()  # its Started message may have arrived just now
            if rank in self._alive and rank not in self._pids:
                self._lose(rank, exitcode, "it had not been started yet")
