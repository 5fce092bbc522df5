"""The default engine: worker processes on this machine, forked from a warm server."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from lockstep import settings
from lockstep.engine.base import (
    Engine,
    EngineEvent,
    GroupSpec,
    OutputSink,
    WorkerExited,
    WorkerGroup,
    WorkerMessage,
)
from lockstep.engine.forkserver import Ended, Interrupt, Kill, Spawn
from lockstep.engine.loop import EventLoop
from lockstep.engine.resources import check_fits, worker_environment
from lockstep.engine.wire import Connection, send_with_files
from lockstep.errors import EngineError

__all__ = ["LocalEngine"]


class LocalEngine(Engine):
    """Keeps one fork server for each combination of preloaded modules and user environment."""

    name = "local"
    single_machine = True

    def __init__(self) -> None:
        self._servers: dict[tuple[Any, ...], _ForkServer] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)

    def check(self, spec: GroupSpec) -> list[str]:
        """See :class:`Engine`."""
        return check_fits(spec)

    def start(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
    ) -> WorkerGroup:
        """See :class:`Engine`."""
        return _LocalGroup(spec, loop, emit, output, self._open_session(spec))

    def close(self) -> None:
        """See :class:`Engine`."""
        with self._lock:
            while self._servers:
                self._servers.popitem()[1].close()
        atexit.unregister(self.close)

    def _open_session(self, spec: GroupSpec) -> socket.socket:
        # Variables can change what a module does when it is imported, so they are part of the key.
        key = (os.getpid(), spec.preload, tuple(sorted(spec.environment.items())))
        with self._lock:
            for _ in range(2):
                server = self._servers.get(key)
                if server is None:
                    server = self._servers[key] = _ForkServer(spec)
                try:
                    return server.open_session()
                except OSError:
                    del self._servers[key]
                    server.close()
        raise EngineError("the fork server ended as soon as it was started; see its output above.")


class _ForkServer:
    """The driver's handle on one server process."""

    def __init__(self, spec: GroupSpec) -> None:
        self._owner = os.getpid()
        self._control, remote = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from lockstep.engine.forkserver import main; "
            f"main({remote.fileno()}, {os.getpid()}, {list(spec.preload)!r})"
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", code],
                pass_fds=[remote.fileno()],
                stdin=subprocess.DEVNULL,
                env=settings.child_environment(spec.environment),
                start_new_session=True,
            )
        except OSError as error:
            self._control.close()
            raise EngineError(f"could not start {sys.executable}: {error}.") from error
        finally:
            remote.close()

    def open_session(self) -> socket.socket:
        mine, theirs = socket.socketpair()
        try:
            send_with_files(self._control, "session", [theirs.fileno()])
        except OSError:
            mine.close()
            raise
        finally:
            theirs.close()
        return mine

    def close(self) -> None:
        self._control.close()
        if os.getpid() == self._owner:  # in a forked child the process is its parent's
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class _LocalGroup(WorkerGroup):
    def __init__(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
        session: socket.socket,
    ) -> None:
        self._emit = emit
        self._alive = set(range(spec.size))
        self._workers: list[Connection] = []
        pipes: list[int] = []
        for rank in range(spec.size):
            driver_end, worker_end = socket.socketpair()
            read_end, write_end = os.pipe()
            spawn = Spawn(
                rank=rank,
                entry=spec.entry,
                environment=settings.child_environment(worker_environment(spec, rank)),
                sys_path=sys.path,
                argv=sys.argv,
                cwd=os.getcwd(),
            )
            send_with_files(session, spawn, [worker_end.fileno(), write_end])
            worker_end.close()
            os.close(write_end)
            pipes.append(read_end)
            connection = Connection(driver_end, loop, self._forward(rank), lambda: None)
            connection.send(spec.payload)
            self._workers.append(connection)
        self._output = _OutputThread(pipes, output)
        self._session = Connection(session, loop, self._ended, self._server_gone)

    def send(self, rank: int, message: Any) -> None:
        self._workers[rank].send(message)

    def interrupt(self) -> None:
        self._session.send(Interrupt())

    def kill(self) -> None:
        self._session.send(Kill())

    def close(self) -> None:
        self._session.close()  # the server kills what is left of this session
        for connection in self._workers:
            connection.close()
        self._output.close()

    def _forward(self, rank: int) -> Callable[[Any], None]:
        emit = self._emit
        return lambda message: emit(WorkerMessage(rank, message))

    def _ended(self, message: Ended) -> None:
        # What the worker sent before it died is read first: it may say why.
        self._workers[message.rank].drain()
        self._alive.discard(message.rank)
        self._emit(WorkerExited(*message))

    def _server_gone(self) -> None:
        for rank in sorted(self._alive):
            self._workers[rank].close()  # the worker's I/O thread sees this and ends its group
            self._emit(WorkerExited(rank, None, "the fork server that owns it was killed"))
        self._alive.clear()


class _OutputThread:
    """Reads what workers print, so that a worker never waits on a busy driver."""

    def __init__(self, pipes: list[int], sink: OutputSink) -> None:
        self._ranks = {fd: rank for rank, fd in enumerate(pipes)}
        self._sink = sink
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="lockstep-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read what is left in the pipes, then end the thread. Idempotent."""
        if self._thread.is_alive():
            os.write(self._wake_write, b"\0")
            self._thread.join()
        for fd in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _run(self) -> None:
        poller = select.poll()
        for fd in (*self._ranks, self._wake_read):
            poller.register(fd, select.POLLIN)
        for fd in self._ranks:
            os.set_blocking(fd, False)
        wait = self._sink.tick()
        closing = False
        while self._ranks and not closing:
            for fd, _ in poller.poll(None if wait is None else max(1, int(wait * 1000))):
                if fd == self._wake_read:
                    closing = True
                else:
                    self._read(fd, poller)
            wait = self._sink.tick()
        for fd in list(self._ranks):
            # A process that outlived its worker may hold the pipe open: take what is there.
            while fd in self._ranks and self._read(fd, poller):
                pass
        for fd in list(self._ranks):
            self._forget(fd, poller)
        self._sink.close()

    def _read(self, fd: int, poller: select.poll) -> bool:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if data:
            self._sink.write(self._ranks[fd], data)
        else:
            self._forget(fd, poller)
        return bool(data)

    def _forget(self, fd: int, poller: select.poll) -> None:
        poller.unregister(fd)
        os.close(fd)
        del self._ranks[fd]
