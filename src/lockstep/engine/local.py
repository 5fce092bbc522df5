"""The default engine: worker processes on this machine, forked from a warm server."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import threading
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
    WorkerMessage,
    WorkerPreempted,
)
from lockstep.engine.forkserver import (
    DumpStacks,
    Ended,
    Interrupt,
    Kill,
    Spawn,
    Started,
)
from lockstep.engine.keeper import CLOSE_SIGNAL
from lockstep.engine.loop import EventLoop, Timer
from lockstep.engine.output_pump import OutputPump
from lockstep.engine.processes import (
    STACK_SIGNAL,
    children,
    current_directory,
    kill_family,
    process_state,
)
from lockstep.engine.resources import (
    check_fits,
    room_for,
    server_environment,
    worker_environment,
)
from lockstep.engine.variables import matters_at_import
from lockstep.engine.wire import (
    Connection,
    Terminating,
    make_frame,
    receive_with_files,
    send_with_files,
)
from lockstep.errors import EngineError

__all__ = ["LocalEngine"]


SERVER_S = 1.0
"""How long the server may take to report that a worker has ended."""

IDLE_SERVERS = 3
"""How many fork servers without workers are kept for later runs."""


class LocalEngine(Engine):
    """Keeps fork servers warm. One serves all groups with the same preloaded modules.

    Groups whose environments differ in a variable that these modules read need servers of their
    own. Of the servers without workers, the least recently used are ended.
    """

    name = "local"
    single_machine = True
    in_this_process = False

    def __init__(self) -> None:
        self._servers: list[_ForkServer] = []  # the least recently used first
        self._lock = threading.Lock()
        atexit.register(self.close)

    def check(self, spec: GroupSpec) -> list[str]:
        """See :class:`Engine`."""
        return check_fits(spec)

    def capacity(self, spec: GroupSpec) -> int:
        """See :class:`Engine`."""
        return room_for(spec)

    def watch_capacity(self, loop: EventLoop, changed: Callable[[], None]) -> Callable[[], None]:
        """See :class:`Engine`."""
        return runtime.watch(lambda: loop.call_soon(changed))

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
            server = self._acquire(spec)
            try:
                return _LocalGroup(spec, loop, emit, output, server, partial(self._release, server))
            except ConnectionError:
                # The server has died since its last use. Start a new one, once.
                self._discard(server)
            except BaseException as error:
                self._release(server)
                if not isinstance(error, OSError):
                    raise
                raise EngineError(f"could not start {spec.size} worker(s): {error}.") from error
        raise EngineError(
            f"the fork server ended as soon as it was started ({server.ending()}); check that "
            f"{sys.executable} runs, and see its output above."
        )

    def close(self) -> None:
        """See :class:`Engine`."""
        with self._lock:
            while self._servers:
                self._servers.pop().close()
        atexit.unregister(self.close)

    def _acquire(self, spec: GroupSpec) -> _ForkServer:
        with self._lock:
            # A forked child of the driver must not use its parent's servers.
            gone = [s for s in self._servers if not s.is_owned or not s.running()]
            for server in gone:
                self._servers.remove(server)
                server.close()
            # Somebody may continue one that is stopped: its workers may belong to another run.
            fitting = [s for s in self._servers if s.fits(spec) and not s.stopped()]
            server = fitting[-1] if fitting else _ForkServer(spec)
            if fitting:
                self._servers.remove(server)
            self._servers.append(server)
            server.groups += 1
        self._end_idle()
        return server

    def _release(self, server: _ForkServer) -> None:
        with self._lock:
            server.groups -= 1
        self._end_idle()

    def _end_idle(self) -> None:
        with self._lock:
            idle = [server for server in self._servers if not server.groups]
            surplus = idle[: max(0, len(idle) - IDLE_SERVERS)]
            for server in surplus:
                self._servers.remove(server)
        for server in surplus:
            server.close()

    def _discard(self, server: _ForkServer) -> None:
        with self._lock:
            if server in self._servers:
                self._servers.remove(server)
        server.close()


class _ForkServer:
    """The driver's handle on one server process."""

    def __init__(self, spec: GroupSpec) -> None:
        self.groups = 0
        """How many worker groups it has now."""
        self._preload = frozenset(spec.preload)
        self._environment = dict(spec.environment)
        self._reads: frozenset[str] | None = None
        self._owner = os.getpid()
        self._pid: int | None = None
        self._sending = threading.Lock()
        self._control, remote = socket.socketpair()
        # If the driver was started without stdin, stdout or stderr, the socket may have got one of
        # their numbers, and Popen would replace it.
        remote_fd = fcntl.fcntl(remote.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        remote.close()
        # Through a pipe: sys.path may be too long for a command line.
        setup = marshal.dumps((_import_path(), list(spec.preload)))
        setup_fd, write_fd = os.pipe()
        code = (
            # SIGTERM is ignored before anything is imported, which may take seconds.
            "import marshal, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
            f"file = open({setup_fd}, 'rb'); "
            f"sys.path[:], preload = marshal.loads(file.read({len(setup)})); file.close(); "
            "from lockstep.engine.forkserver import main; "
            f"main({remote_fd}, {os.getpid()}, preload)"
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            self._process = subprocess.Popen(
                [sys.executable or "python", *flags, "-c", code],
                pass_fds=[remote_fd, setup_fd],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if sys.__stdout__ is None else None,
                stderr=subprocess.DEVNULL if sys.__stderr__ is None else None,
                env=server_environment(spec),
                start_new_session=True,  # Ctrl-C on the terminal goes to the driver alone
            )
        except OSError as error:
            self._control.close()
            os.close(write_fd)
            raise EngineError(f"could not start {sys.executable}: {error}.") from error
        finally:
            os.close(remote_fd)
            os.close(setup_fd)
        with contextlib.suppress(BrokenPipeError), open(write_fd, "wb") as pipe:
            pipe.write(setup)  # if the process has ended, its first session shows it

    @property
    def pid(self) -> int:
        """The server's own process, the only child of its keeper."""
        if self._pid is None:
            self._pid = next(iter(children(self._process.pid)), None)
        return self._process.pid if self._pid is None else self._pid

    @property
    def is_owned(self) -> bool:
        """This process has started it, not its parent."""
        return os.getpid() == self._owner

    def fits(self, spec: GroupSpec) -> bool:
        """Whether it has imported the same modules, as they would be in that environment."""
        if self._preload != frozenset(spec.preload):
            return False
        differing = {
            name
            for name in self._environment.keys() | spec.environment.keys()
            if self._environment.get(name) != spec.environment.get(name)
        }
        if not differing:
            return True
        reads = self._known_reads()
        return reads is not None and not any(matters_at_import(name, reads) for name in differing)

    def _known_reads(self) -> frozenset[str] | None:
        """The variables that the imported modules have read; None while they are imported."""
        waiting = select.poll()
        waiting.register(self._control.fileno(), select.POLLIN)
        if self._reads is None and waiting.poll(0):
            with contextlib.suppress(OSError, EOFError, EngineError):
                received = receive_with_files(self._control)
                if received is not None:
                    self._reads = received[0].reads
        return self._reads

    def running(self) -> bool:
        return self._process.poll() is None

    def stopped(self) -> bool:
        return process_state(self.pid) == "stopped"

    def ending(self) -> str:
        """How the process ended, for a message. Call this when it has ended or is about to end."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "the process runs, but does not answer"
        return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"

    def open_session(self) -> socket.socket:
        mine, theirs = socket.socketpair()
        try:
            with self._sending:  # several threads may start runs at once
                send_with_files(self._control, "session", [theirs.fileno()])
        except OSError:
            mine.close()
            raise
        finally:
            theirs.close()
        return mine

    def close(self) -> None:
        self._control.close()
        if os.getpid() != self._owner:
            self._process.returncode = 0  # this is a forked child: its parent owns the process
            return
        if "stopped" in (process_state(self._process.pid), process_state(self.pid)):
            kill_family(self._process.pid)
        # To close the socket is not enough: a forked child may hold it, or the server may still be
        # importing.
        self._process.send_signal(CLOSE_SIGNAL)
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
        server: _ForkServer,
        release: Callable[[], None],
    ) -> None:
        self._release = release
        self._loop = loop
        self._emit = emit
        self._server = server
        self._alive = set(range(spec.size))
        self._pids: dict[int, int] = {}
        self._ending: set[int] = set()  # closed their connection, or were killed
        self._ended_since: dict[int, float] = {}
        self._killed = False
        self._check: Timer | None = None
        self._workers: list[Connection] = []
        self._garbage: dict[int, str] = {}
        self._packed: tuple[Any, bytes] = (object(), b"")
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
                            sys_path=_import_path(),
                            argv=sys.argv,
                            cwd=current_directory(),
                        )
                        send_with_files(session, spawn, [worker_end.fileno(), write_end])
                    finally:
                        os.close(write_end)  # or the pipe would never report its end
                connection.send_frame(payload)
                pipes.append(read_end)
                self._workers.append(connection)
            self._output = OutputPump(pipes, output, loop)
            undo.pop_all()
        self._session = Connection(
            session, loop, self._ended, self._server_gone, lambda _: self._server_gone()
        )

    def send(self, rank: int, message: Any) -> None:
        # The same answer goes to every rank, one after the other: it is pickled once.
        if message is not self._packed[0]:
            self._packed = (message, make_frame(message))
        self._workers[rank].send_frame(self._packed[1])

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
        if self._check is not None:
            self._check.cancel()
        if self._alive and self._server.stopped():
            for rank in self._alive & self._pids.keys():
                kill_family(self._pids[rank])
        self._alive.clear()
        self._session.close()  # the server then kills the workers of this session
        for connection in self._workers:
            connection.close()
        self._output.close()
        release, self._release = self._release, lambda: None
        release()

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

    def _signal(self, ranks: set[int], number: int) -> None:
        """What the server would do. It is stopped, so it reaps nobody: the numbers are valid."""
        for rank in ranks & self._pids.keys():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[rank], number)

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

    def _abandon_unstarted(self, exitcode: int) -> None:
        """Report workers that the server has not forked yet as ended, instead of waiting.

        The server may import for a minute. A worker that is forked later finds its socket closed,
        and ends.
        """
        for rank in sorted(self._alive):
            self._workers[rank].drain()  # its Started message may have arrived just now
            if rank in self._alive and rank not in self._pids:
                self._alive.discard(rank)
                self._workers[rank].hang_up()
                self._emit(WorkerExited(rank, exitcode, "it had not been started yet"))

    def _ended(self, message: Ended) -> None:
        if message.rank not in self._alive:
            return
        # First the last messages of the worker: they may contain the reason.
        self._workers[message.rank].drain()
        self._alive.discard(message.rank)
        if message.rank in self._garbage:
            # The signal is this engine's own, and says nothing.
            self._emit(WorkerExited(message.rank, None, self._garbage[message.rank]))
        else:
            self._emit(WorkerExited(*message))

    def _got_garbage(self, rank: int, what: str) -> None:
        self._garbage[rank] = (
            f"its connection to the driver carried {what}; a process that it forked may have "
            "written to a file that is not its own"
        )
        self._session.send(Kill(rank))
        self._expect_end(rank)

    def _server_gone(self) -> None:
        detail = f"the fork server that owns it is gone ({self._server.ending()})"
        for rank in sorted(self._alive):
            self._lose(rank, None, detail)


def _import_path() -> list[str]:
    return [entry for entry in sys.path if isinstance(entry, str)]
