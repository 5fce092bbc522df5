"""The default engine: worker processes on this machine, forked from a warm server."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from lockstep import runtime, settings
from lockstep.engine.base import (
    Engine,
    EngineEvent,
    GroupSpec,
    OutputSink,
    WorkerExited,
    WorkerGroup,
)
from lockstep.engine.connected import ConnectedGroup
from lockstep.engine.forkserver import (
    DumpStacks,
    Ended,
    Interrupt,
    Kill,
    Spawn,
)
from lockstep.engine.loop import EventLoop, Timer
from lockstep.engine.output_pump import OutputPump
from lockstep.engine.processes import (
    STACK_SIGNAL,
    current_directory,
    kill_family,
    process_state,
)
from lockstep.engine.resources import (
    check_fits,
    room_for,
    shared_resources,
    worker_environment,
)
from lockstep.engine.servers import ForkServer, ServerPool, import_path
from lockstep.engine.usage import sample_workers
from lockstep.engine.wire import Connection, make_frame, send_with_files
from lockstep.errors import EngineError
from lockstep.warm import modules

__all__ = ["LocalEngine"]


LEARN_S = 5.0
"""How long after the start of workers a warm server is started, or taught. By then the workers'
imports are done, with which its own would compete; a script that ends sooner does it then."""

SERVER_S = 1.0
"""How long the server may take to report that a worker has ended."""


class LocalEngine(Engine):
    """Worker processes on this machine, forked from servers that stay warm."""

    name = "local"
    single_machine = True
    in_this_process = False

    def __init__(self) -> None:
        self._pool = ServerPool()
        atexit.register(self._close_at_exit)

    def check(self, spec: GroupSpec) -> list[str]:
        """See :class:`Engine`."""
        return check_fits(spec)

    def capacity(self, spec: GroupSpec) -> int:
        """See :class:`Engine`."""
        return room_for(spec)

    def resources(self) -> tuple[float, tuple[str, ...]]:
        """See :class:`Engine`."""
        return shared_resources()

    def watch_capacity(self, loop: EventLoop, changed: Callable[[], None]) -> Callable[[], None]:
        """See :class:`Engine`."""
        return runtime.watch(lambda: loop.call_soon(changed))

    def prepare(self, spec: GroupSpec) -> None:
        """See :class:`Engine`."""
        with contextlib.suppress(OSError, EngineError):  # start() says what is wrong
            current_directory()
            self._pool.prepare(spec)

    def start(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
    ) -> WorkerGroup:
        """See :class:`Engine`."""
        current_directory()  # checked first: the server's interpreter would not start without it
        for _ in range(2):
            server = self._pool.acquire(spec)
            try:
                return _LocalGroup(
                    spec, loop, emit, output, server, partial(self._pool.release, server)
                )
            except ConnectionError:
                # The server has died since its last use. Start a new one, once.
                self._pool.discard(server)
            except BaseException as error:
                self._pool.release(server)
                if not isinstance(error, OSError):
                    raise
                raise EngineError(f"could not start {spec.size} worker(s): {error}.") from error
        raise EngineError(
            f"the fork server ended as soon as it was started ({server.ending()}); check that "
            f"{sys.executable} runs, and see its output above."
        )

    def close(self) -> None:
        """See :class:`Engine`."""
        self._pool.close()
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        self._pool.close(at_exit=True)


class _LocalGroup(ConnectedGroup):
    def __init__(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
        server: ForkServer,
        release: Callable[[], None],
    ) -> None:
        super().__init__(spec.size, loop, emit)
        self._release = release
        self._server = server
        self._ending: set[int] = set()  # closed their connection, or were killed
        self._ended_since: dict[int, float] = {}
        self._killed = False
        self._check: Timer | None = None
        pipes: list[int] = []
        payload = make_frame(spec.payload)
        # Any failure below closes what was opened so far, and ends the workers started so far.
        with contextlib.ExitStack() as undo:
            session = undo.enter_context(server.open_session())
            session.settimeout(settings.start_timeout_seconds())  # it may be stopped
            for rank in range(spec.size):
                driver_end, worker_end = socket.socketpair()
                with worker_end:
                    connection = Connection(
                        driver_end,
                        loop,
                        self._forward(rank),
                        partial(self._expect_end, rank),
                        partial(self._got_garbage, rank),
                    )
                    undo.callback(connection.close)
                    read_end, write_end = os.pipe()
                    undo.callback(os.close, read_end)
                    try:
                        spawn = Spawn(
                            rank=rank,
                            title=f"{spec.title}: rank {rank} of {spec.size} (lockstep worker)",
                            entry=spec.entry,
                            environment=settings.child_environment(worker_environment(spec, rank)),
                            sys_path=import_path(),
                            argv=sys.argv,
                            cwd=current_directory(),
                        )
                        send_with_files(session, spawn, [worker_end.fileno(), write_end])
                    finally:
                        os.close(write_end)  # or the pipe would never report its end
                connection.send_frame(payload)
                pipes.append(read_end)
                self._workers[rank] = connection
            self._output = OutputPump(pipes, output, loop)
            undo.pop_all()
        self._session = Connection(
            session, loop, self._ended, self._server_gone, lambda _: self._server_gone()
        )
        self._lesson: Timer | None = None
        if modules.note_workers((*spec.preload, *spec.preload_later)):
            self._lesson = loop.call_later(LEARN_S, modules.learn)

    def send(self, rank: int, message: Any) -> None:
        self._workers[rank].send_frame(self._frame(message))

    def interrupt(self) -> None:
        if self._server.stopped():
            self._signal(self._alive, signal.SIGINT)
        else:
            self._session.send(Interrupt())
        self._loop.call_soon(lambda: self._abandon_unstarted(130))

    def dump_stacks(self, rank: int) -> None:
        if self._server.stopped():
            self._signal({rank} & self._alive, STACK_SIGNAL)
        else:
            self._session.send(DumpStacks(rank))

    def sample(self) -> None:
        self._emit(sample_workers(self._pids_of(self._alive)))

    def problem(self, rank: int) -> str:
        server = self._server.pid
        if self._server.stopped():
            return f"the fork server is stopped; kill -CONT {server} continues it"
        if rank not in self._alive:
            return ""
        if rank not in self._pids:
            return f"the fork server, process {server}, may still be importing modules"
        pid = self._pids[rank]
        if process_state(pid) == "stopped":
            return f"process {pid} of rank {rank} is stopped; kill -CONT {pid} continues it"
        return ""

    def kill(self) -> None:
        self._session.send(Kill())
        self._loop.call_soon(lambda: self._abandon_unstarted(-signal.SIGKILL))
        self._killed = True
        self._ending |= self._alive
        self._check_later(0.0 if self._server.stopped() else SERVER_S)

    def abandon(self) -> None:
        for rank in sorted(self._alive):
            self._lose(rank, -signal.SIGKILL, "its end was not waited for")

    def close(self) -> None:
        for timer in (self._check, self._lesson):
            if timer is not None:
                timer.cancel()
        if self._alive and self._server.stopped():
            for pid in self._pids_of(self._alive).values():
                kill_family(pid)
        self._alive.clear()
        self._session.close()  # the server then kills the workers of this session
        for connection in self._workers.values():
            connection.close()
        self._output.close()
        release, self._release = self._release, lambda: None
        release()

    def _signal(self, ranks: set[int], number: int) -> None:
        """What the server would do. It is stopped, so it reaps nobody: the numbers are valid."""
        for pid in self._pids_of(ranks).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _expect_end(self, rank: int) -> None:
        self._ending.add(rank)
        self._check_later(SERVER_S)

    def _check_later(self, seconds: float) -> None:
        if self._check is not None:
            self._check.cancel()
        self._check = self._loop.call_later(seconds, self._check_ends)

    def _check_ends(self) -> None:
        """Do what the server does not do in time: kill workers, and notice their ends."""
        self._session.drain()
        stopped, now = self._server.stopped(), time.monotonic()
        for rank in sorted(self._ending & self._alive & self._pids.keys()):
            if process_state(self._pids[rank]) != "ended":
                if self._killed:
                    kill_family(self._pids[rank])
                continue
            since = self._ended_since.setdefault(rank, now)
            if stopped or now - since >= SERVER_S:
                exitcode = -signal.SIGKILL if self._killed else None
                why = self.problem(rank) or f"process {self._server.pid} does not answer"
                self._lose(rank, exitcode, f"the fork server did not report how: {why}")
        if self._ending & self._alive:
            self._check_later(SERVER_S / 10 if stopped else SERVER_S / 2)

    def _lose(self, rank: int, exitcode: int | None, detail: str) -> None:
        """Report an end that the server has not reported."""
        self._workers[rank].drain()
        if rank in self._alive:
            self._alive.discard(rank)
            # Killed before its connection is closed: on that, the worker kills its own group, and
            # descendants that left the group could not be found any more.
            if rank in self._pids:
                kill_family(self._pids[rank])
            self._workers[rank].hang_up()
            self._emit(WorkerExited(rank, exitcode, detail))

    def _ended(self, message: Ended) -> None:
        if message.rank not in self._alive:
            return
        # First the last messages of the worker: they may contain the reason.
        self._workers[message.rank].drain()
        self._alive.discard(message.rank)
        self._emit(self._end_of(message))

    def _got_garbage(self, rank: int, what: str) -> None:
        self._note_garbage(rank, what)
        self._session.send(Kill(rank))
        self._expect_end(rank)

    def _server_gone(self) -> None:
        detail = f"the fork server that owns it is gone ({self._server.ending()})"
        for rank in sorted(self._alive):
            self._lose(rank, None, detail)
