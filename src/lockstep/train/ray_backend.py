"""Backends written for Ray: hooks that are called once, with the group of all workers.

Ray calls the hooks in its driver. Here rank 0 calls them, and every other rank runs what the hooks
execute on the group.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from lockstep.error_record import pack_error, unpack_error
from lockstep.train.backend import Backend, BackendConfig, Place, Wiring
from lockstep.train.meeting import Meeting, join

__all__ = ["RayBackend", "RayWorkerGroup"]


class RayWorkerGroup:
    """All workers of a run, as the hooks of Ray's backends see them."""

    def __init__(self, others: dict[int, Connection]) -> None:
        self._others = [others[rank] for rank in sorted(others)]

    def __len__(self) -> int:
        return len(self._others) + 1

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return len(self)

    def execute(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function on every worker at the same time; returns what each returned."""
        self._send(range(1, len(self)), func, args, kwargs)
        own = func(*args, **kwargs)
        return [own, *(self._receive(rank) for rank in range(1, len(self)))]

    def execute_single(
        self, worker_index: int, func: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function on one worker; returns what it returned."""
        if worker_index not in range(len(self)):
            raise IndexError(
                f"execute_single({worker_index!r}, …): there are {len(self)} workers, from 0."
            )
        if worker_index == 0:
            return func(*args, **kwargs)
        self._send([worker_index], func, args, kwargs)
        return self._receive(worker_index)

    # Ray's asynchronous calls return references, which ray.get() resolves; a value is one already.
    execute_async = execute
    execute_single_async = execute_single

    def _send(self, ranks: Any, func: Any, args: Any, kwargs: Any) -> None:
        call = cloudpickle.dumps((func, args, kwargs))
        for rank in ranks:
            self._others[rank - 1].send_bytes(call)

    def _receive(self, rank: int) -> Any:
        worked, value = pickle.loads(self._others[rank - 1].recv_bytes())
        if worked:
            return value
        raise unpack_error(value)

    def release(self) -> None:
        """Let the others continue."""
        for connection in self._others:
            connection.send_bytes(b"")

    def close(self) -> None:
        """Close the connections."""
        for connection in self._others:
            connection.close()


class RayBackend(Backend):
    """Calls ``on_start`` and ``on_training_start`` in setup, ``on_shutdown`` in teardown.

    ``on_shutdown`` is not called after a failure: the processes are gone then.
    """

    needs_all_announcements = False

    def __init__(self, config: BackendConfig) -> None:
        self._config = config
        self._meeting: Meeting | None = None
        self._backend: Any = None
        self._group: RayWorkerGroup | None = None
        self._connection: Connection | None = None
        self._around = ExitStack()

    def announce(self, rank: int, address: str) -> Place:
        """Rank 0 opens a meeting."""
        if rank != 0:
            return Place(address)
        self._meeting = Meeting(address)
        return self._meeting.place

    def setup(self, wiring: Wiring) -> None:
        """Call the hooks on rank 0; the others run what these execute."""
        context = wiring.context
        config: Any = self._config
        if self._meeting is None:
            self._connection = join(wiring.announcements[0], context.world_rank)
            _serve(self._connection)
        else:
            self._group = RayWorkerGroup(self._meeting.wait_for(context.world_size - 1))
            self._backend = config.backend_cls()
            self._call("on_start")
            self._call("on_training_start")
            self._group.release()
        if hasattr(config, "train_func_context"):
            self._around.enter_context(config.train_func_context())

    def teardown(self) -> None:
        """Call the last hook."""
        self._around.close()
        if self._connection is not None:
            _serve(self._connection)
            self._connection.close()
            self._connection = None
        if self._group is not None:
            self._call("on_shutdown")
            self._group.release()
            self._group.close()
            self._group = None

    def _call(self, hook: str) -> None:
        method = getattr(self._backend, hook, None)
        if method is not None:
            method(self._group, self._config)


def _serve(connection: Connection) -> None:
    """Run what rank 0 executes on this rank, until rank 0 releases it or is gone."""
    while True:
        try:
            call = connection.recv_bytes()
        except (EOFError, ConnectionError):
            return
        if not call:
            return
        try:
            function, args, kwargs = pickle.loads(call)
            answer = True, function(*args, **kwargs)
            packed = cloudpickle.dumps(answer)
        except Exception as error:
            packed = pickle.dumps((False, pack_error(error)))
        connection.send_bytes(packed)
