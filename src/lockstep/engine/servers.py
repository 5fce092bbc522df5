"""Fork servers as the process that owns them sees them: started, kept warm, ended."""

from __future__ import annotations

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

from lockstep import settings
from lockstep.engine.base import GroupSpec
from lockstep.engine.keeper import CLOSE_SIGNAL
from lockstep.engine.processes import children, kill_family, process_state
from lockstep.engine.resources import server_environment
from lockstep.engine.wire import receive_with_files, send_with_files
from lockstep.errors import EngineError
from lockstep.warm.caller import capture
from lockstep.warm.client import ANSWER_S, ask, await_process
from lockstep.warm.identity import interpreter_flags
from lockstep.warm.messages import receive, send
from lockstep.warm.place import Place, Unavailable
from lockstep.warm.variables import matters_at_import

__all__ = ["ForkServer", "ServerPool", "import_path"]

IDLE_SERVERS = 3
"""How many fork servers without workers are kept for later runs."""


class ServerPool:
    """Keeps fork servers warm. One serves all groups with the same preloaded modules.

    Groups whose environments differ in a variable that these modules read need servers of their
    own. Of the servers without workers, the least recently used are ended.
    """

    def __init__(self) -> None:
        self.servers: list[ForkServer] = []
        """The least recently used first."""
        self._lock = threading.Lock()

    def acquire(self, spec: GroupSpec) -> ForkServer:
        """A server for a group, which must ``release`` it."""
        with self._lock:
            # A forked child of the driver must not use its parent's servers.
            gone = [s for s in self.servers if not s.is_owned or not s.running()]
            for server in gone:
                self.servers.remove(server)
                server.close()
            # Somebody may continue one that is stopped: its workers may belong to another run.
            fitting = [s for s in self.servers if s.fits(spec) and not s.stopped()]
            server = fitting[-1] if fitting else ForkServer(spec)
            if fitting:
                self.servers.remove(server)
            try:
                server.settle()
            except BaseException:
                server.close()
                raise
            self.servers.append(server)
            server.groups += 1
        self._end_idle()
        return server

    def prepare(self, spec: GroupSpec) -> None:
        """Begin to start a server for a group that will soon be there. Does not wait for it."""
        with self._lock:
            if not any(s.is_owned and s.running() and s.fits(spec) for s in self.servers):
                self.servers.append(ForkServer(spec))
        self._end_idle()

    def release(self, server: ForkServer) -> None:
        """A group has ended."""
        with self._lock:
            server.groups -= 1
        self._end_idle()

    def _end_idle(self) -> None:
        with self._lock:
            idle = [server for server in self.servers if not server.groups]
            surplus = idle[: max(0, len(idle) - IDLE_SERVERS)]
            for server in surplus:
                self.servers.remove(server)
        for server in surplus:
            server.close()

    def discard(self, server: ForkServer) -> None:
        """End a server that does not answer."""
        with self._lock:
            if server in self.servers:
                self.servers.remove(server)
        server.close()

    def close(self, *, at_exit: bool = False) -> None:
        """End all servers, with their workers; ``at_exit``: as ``ForkServer.close``. Idempotent."""
        with self._lock:
            while self.servers:
                self.servers.pop().close(at_exit=at_exit)


class ForkServer:
    """One server process. It starts while its owner does other things, until ``settle``."""

    def __init__(self, spec: GroupSpec) -> None:
        self.groups = 0
        """How many worker groups it has now."""
        self._spec = spec
        self._preload = frozenset((*spec.preload, *spec.preload_later))
        self._environment = dict(spec.environment)
        self._reads: frozenset[str] | None = None
        self._owner = os.getpid()
        self._pid: int | None = None
        self._sending = threading.Lock()
        self._loan: _Loan | None = None
        self._started: subprocess.Popen[bytes] | _Borrowed | None = None
        self._control, remote = socket.socketpair()
        with remote:
            try:
                self._loan = _Loan(spec, remote)
            except (Unavailable, OSError):
                self._start_cold(remote)
            except BaseException:
                self._control.close()
                raise

    def settle(self) -> None:
        """Wait until it is known which process it is. A group may use it then."""
        if self._started is None and self._loan is not None:
            try:
                self._started = self._loan.take()
            except (Unavailable, OSError):
                self._control.close()
                self._control, remote = socket.socketpair()
                with remote:
                    self._start_cold(remote)

    def _start_cold(self, remote: socket.socket) -> None:
        try:
            self._started = _start_cold(self._spec, remote)
        except BaseException:
            self._control.close()
            raise

    @property
    def _process(self) -> subprocess.Popen[bytes] | _Borrowed:
        assert self._started is not None, "settle() comes first"
        return self._started

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
        if self._preload != frozenset((*spec.preload, *spec.preload_later)):
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
        while waiting.poll(0):
            try:
                received = receive_with_files(self._control)
            except (OSError, EOFError, EngineError):
                break
            if received is None:
                break
            self._reads = (self._reads or frozenset()) | received[0].reads
        return self._reads

    def running(self) -> bool:
        """Whether the process runs, or is being started."""
        return self._started is None or self._started.poll() is None

    def stopped(self) -> bool:
        """Whether somebody has stopped the process, as with SIGSTOP."""
        return self._started is not None and process_state(self.pid) == "stopped"

    def ending(self) -> str:
        """How the process ended, for a message. Call this when it has ended or is about to end."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "the process runs, but does not answer"
        return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"

    def open_session(self) -> socket.socket:
        """This process's end of a new session, for one worker group."""
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

    def close(self, *, at_exit: bool = False) -> None:
        """End the process, with its workers.

        ``at_exit``: this process exits now. One without workers that a warm server has forked is
        not waited for: it is nobody's child, and the memory that it gives back takes a while.
        """
        self._control.close()
        if self._started is None:  # it ends when it finds the socket closed
            if self._loan is not None:
                self._loan.close()
            return
        if os.getpid() != self._owner:
            self._process.returncode = 0  # this is a forked child: its parent owns the process
            return
        if "stopped" in (process_state(self._process.pid), process_state(self.pid)):
            kill_family(self._process.pid)
        # To close the socket is not enough: a forked child may hold it, or the server may still be
        # importing.
        self._process.send_signal(CLOSE_SIGNAL)
        if at_exit and not self.groups and isinstance(self._process, _Borrowed):
            return
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Loan:
    """A process that a warm server was asked for, and has perhaps forked by now.

    Raises:
        Unavailable, OSError: there is no server that fits.
    """

    def __init__(self, spec: GroupSpec, remote: socket.socket) -> None:
        if settings.warm_is_off() or not hasattr(os, "pidfd_open") or sys.platform != "linux":
            raise Unavailable("warm starts are off")
        place = Place.of(settings.child_environment(spec.environment))
        streams = ((1, sys.__stdout__), (2, sys.__stderr__))
        output = [fd for fd, stream in streams if stream is not None]
        values, files = capture(server_environment(spec), output)
        try:
            self._sock = ask(place, "workers")
            try:
                # At once, unlike a script's: a process whose driver does not want it any more finds
                # its socket closed, and ends.
                self._sock.settimeout(ANSWER_S)
                control = 3
                values["numbers"].append(control)
                send(
                    self._sock,
                    "go",
                    [*files, remote.fileno()],
                    control=control,
                    preload=list(spec.preload),
                    later=list(spec.preload_later),
                    sys_path=import_path(),
                    **values,
                )
            except BaseException:
                self._sock.close()
                raise
        finally:
            os.close(files[0])

    def take(self) -> _Borrowed:
        """Wait for the process.

        Raises:
            Unavailable, OSError: there is none.
        """
        with self._sock as sock:
            await_process(sock)
            answer = receive(sock)
        if answer is None:
            raise Unavailable("the warm server has ended")
        if answer[0] != "started":
            raise Unavailable(answer[1]["reason"])
        return _Borrowed(answer[1]["pid"], answer[2][0])

    def close(self) -> None:
        """Do without it."""
        self._sock.close()


def _start_cold(spec: GroupSpec, remote: socket.socket) -> subprocess.Popen[bytes]:
    remote_fd = _above_standard(remote.fileno())
    # Through a pipe: sys.path may be too long for a command line.
    setup = marshal.dumps((import_path(), list(spec.preload), list(spec.preload_later)))
    read_fd, write_fd = os.pipe()
    setup_fd = _above_standard(read_fd)
    os.close(read_fd)
    code = (
        # What lies in the working directory is not Python's own signal.
        "import marshal, sys; "
        "sys.path[:1] = [] if sys.path[:1] == [''] else sys.path[:1]; "
        # SIGTERM is ignored before anything else is imported, which may take seconds.
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"file = open({setup_fd}, 'rb'); "
        f"sys.path[:], preload, later = marshal.loads(file.read({len(setup)})); file.close(); "
        "from lockstep.engine.forkserver import main; "
        f"main({remote_fd}, {os.getpid()}, preload, later)"
    )
    flags = interpreter_flags()
    try:
        process = subprocess.Popen(
            [sys.executable or "python", *flags, "-c", code],
            pass_fds=[remote_fd, setup_fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if sys.__stdout__ is None else None,
            stderr=subprocess.DEVNULL if sys.__stderr__ is None else None,
            env=server_environment(spec),
            start_new_session=True,  # Ctrl-C on the terminal goes to the driver alone
        )
    except OSError as error:
        os.close(write_fd)
        raise EngineError(f"could not start {sys.executable}: {error}.") from error
    finally:
        os.close(remote_fd)
        os.close(setup_fd)
    with contextlib.suppress(BrokenPipeError), open(write_fd, "wb") as pipe:
        pipe.write(setup)  # if the process has ended, its first session shows it
    return process


def _above_standard(fd: int) -> int:
    """A copy with a number above those of stdin, stdout and stderr.

    If the driver was started without these, the file may have got one of their numbers, and Popen
    would replace it.
    """
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


class _Borrowed:
    """A process that a warm server has forked for this one; used like a ``Popen``."""

    returncode: int | None = None

    def __init__(self, pid: int, handle: int) -> None:
        self.pid = pid
        self._handle = handle

    def poll(self) -> int | None:
        return self._poll(0)

    def wait(self, timeout: float | None = None) -> int:
        if self._poll(timeout) is None:
            raise subprocess.TimeoutExpired("a warm server's process", timeout or 0.0)
        return 0

    def _poll(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._handle, select.POLLIN)
            if waiting.poll(None if timeout is None else timeout * 1000):
                # Only its parent knows how it ended.
                self.returncode = 0
                os.close(self._handle)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self._poll(0) is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def import_path() -> list[str]:
    """``sys.path`` as a server and its workers get it."""
    return [entry for entry in sys.path if isinstance(entry, str)]
