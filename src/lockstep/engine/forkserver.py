"""The warm fork server: a small process that has imported the framework and forks workers.

The server runs no user code, has no second thread and never uses a GPU. So a fork of it is safe,
and takes milliseconds. The server is the parent of every worker: it sees how each worker ends.

    driver ── control socket ──▶ server      one: passes a session socket for each worker group
    driver ◀─ control socket ─── server      Preloaded, and again after what is for later
    driver ◀─ session socket ──▶ server      Spawn (with the worker's socket and log pipe) / Ended
    driver ◀─ worker socket ───▶ worker      everything else

    driver ─▶ keeper ─▶ server ─▶ worker ─▶ the processes that it starts

Each worker leads a process group of its own, and becomes the parent of every descendant whose own
parent ends. So all of its descendants can be found, also those in sessions of their own. When the
worker ends, they become children of the server, which ends them. When the server ends, the keeper
(``keeper.py``) does that; when the keeper ends, the server ends with all workers.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import os
import pkgutil
import random
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Collection
from io import TextIOWrapper
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from lockstep.engine.attach import answer_requests
from lockstep.engine.base import OUT_OF_MEMORY, Node
from lockstep.engine.keeper import PARENT_CHECK_S, fork_server
from lockstep.engine.processes import (
    STACK_SIGNAL,
    adopt_orphans,
    children,
    descendants,
    describe_memory,
    end_own_family,
    group_exists,
    kill_children,
    kill_family,
    kill_group,
    oom_kills,
    process_handle,
)
from lockstep.engine.resources import BlasThreads
from lockstep.engine.titles import SERVER_TITLE, set_title
from lockstep.engine.wakeup import Wakeup
from lockstep.engine.wire import SocketChannel, receive_with_files, send_with_files
from lockstep.errors import EngineError
from lockstep.warm.variables import recorded_reads

__all__ = [
    "DumpStacks",
    "Ended",
    "Interrupt",
    "Kill",
    "Preloaded",
    "Spawn",
    "Started",
    "main",
    "skip_library_finalizers",
]

LEFTOVER_GRACE_S = 1.0
"""How long the processes that a worker left behind may run after it has exited cleanly."""

LATER_S = 1.0
"""How long nothing must have been asked of the server before it imports what is for later. While
it imports, it does not answer."""

_BLOCKED_AT_FORK = {signal.SIGINT, signal.SIGTERM}


class Spawn(NamedTuple):
    """Fork one worker. Its socket and the pipe for its output are sent along."""

    rank: int
    title: str
    entry: str
    environment: dict[str, str]
    sys_path: list[str]
    argv: list[str]
    cwd: str
    node: Node | None = None


class Interrupt(NamedTuple):
    """SIGINT to every worker of this session."""


class DumpStacks(NamedTuple):
    """Make one worker write its threads' stacks to its stderr."""

    rank: int


class Kill(NamedTuple):
    """SIGKILL to the workers of this session, or to one, and to the processes they started."""

    rank: int | None = None


class Preloaded(NamedTuple):
    """Sent to the driver when modules are imported: those to preload, and those for later."""

    reads: frozenset[str]
    """The environment variables that they have read."""


class Started(NamedTuple):
    """A worker's first message: the driver must kill this process if the server is killed."""

    pid: int


class Ended(NamedTuple):
    """Sent to the driver: a worker's process has ended."""

    rank: int
    exitcode: int | None
    detail: str = ""


def main(
    control_fd: int,
    driver_pid: int,
    preload: list[str],
    later: list[str],
    *,
    is_child: bool = True,
    reads: Collection[str] = (),
) -> None:
    """Serve until the driver is gone.

    Args:
        control_fd: the socket to the driver.
        driver_pid: its process.
        preload: the modules to import.
        later: the modules to import when there is nothing else to do.
        is_child: this process is the driver's child; otherwise a warm server has forked it.
        reads: the variables that modules have read which the warm server had imported.
    """
    of_driver = f"of process {driver_pid}"
    set_title(f"{SERVER_TITLE} {of_driver}: keeper", "lockstep-keeper")
    adopt_orphans()
    fork_server(driver_pid, control_fd, is_child=is_child)
    adopt_orphans()
    set_title(f"{SERVER_TITLE} {of_driver}", "lockstep-server")
    control = socket.socket(fileno=control_fd)
    _preload(preload, control, reads)
    _Server(control, later).run()


def _preload(names: list[str], control: socket.socket, known: Collection[str] = ()) -> None:
    """Import modules, and send the driver the variables that they have read."""
    gc.disable()  # what is imported stays; to look through it again and again takes long
    with recorded_reads() as reads:
        for name in names:
            try:
                importlib.import_module(name)
            except Exception as error:
                # The worker imports it again, and fails where the user sees the error.
                print(f"lockstep: could not preload {name}: {error}", file=sys.stderr)
    skip_library_finalizers()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # a fork copies the buffer: every worker would print it again
    # One for each directory that was looked at. A worker would touch all of them, and so copy them.
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()  # a collection in a worker would write to these pages, and so copy them
    gc.enable()
    with contextlib.suppress(OSError):  # the driver is gone, and the keeper will see it
        send_with_files(control, Preloaded(frozenset(reads.union(known))), [])


def skip_library_finalizers() -> None:
    """Let processes that are forked from now on exit without torch's removal of its operators.

    There are more than a hundred of them, imported here. To remove them takes longer than all else
    at the end of a worker, and the memory that it frees is about to be freed anyway.
    """
    finalizers: Any = weakref.finalize
    for one in list(getattr(finalizers, "_registry", ())):
        found = one.peek()
        if found is not None and getattr(found[1], "__module__", "") == "torch.library":
            one.atexit = False


class _Server:
    def __init__(self, control: socket.socket, later: list[str]) -> None:
        self._later = later
        self._is_used = False
        """Whether a session was opened: before, the first workers would wait for more imports."""
        self._blas_threads = BlasThreads()
        self._control = control
        self._keeper_pid = os.getppid()
        self._selector = selectors.DefaultSelector()
        self._sessions: dict[socket.socket, dict[int, int]] = {}  # session → pid → rank
        self._oom_kills: dict[int, int] = {}  # pid → the kernel's count when it was forked
        self._killed: set[int] = set()
        self._leftovers: list[tuple[float, int]] = []  # when to kill, process group
        self._strays: dict[int, float] = {}  # a process that lost its worker → when to kill it
        self._wakeup = Wakeup()
        self._selector.register(control, selectors.EVENT_READ, self._new_session)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._children_ended)
        self._keeper_fd = process_handle(self._keeper_pid)
        if self._keeper_fd is not None:
            self._selector.register(self._keeper_fd, selectors.EVENT_READ, self._shut_down)
        # Python writes to the wake-up pipe only for signals that have a handler.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.signal_fd, warn_on_full_buffer=False)

    def run(self) -> NoReturn:
        while True:
            # If the keeper died before its handle was opened, only this shows it.
            if os.getppid() != self._keeper_pid:
                self._shut_down()
            timeout = None if self._keeper_fd is not None else PARENT_CHECK_S
            if self._leftovers or self._strays:
                due = min([late for late, _ in self._leftovers] + [*self._strays.values()])
                timeout = max(0.0, due - time.monotonic())
            is_late = self._is_used and bool(self._later)
            if is_late:
                timeout = LATER_S if timeout is None else min(timeout, LATER_S)
            ready = self._selector.select(timeout)
            for key, _ in ready:
                key.data()
            if is_late and not ready and timeout == LATER_S:
                later, self._later = self._later, []
                _preload(later, self._control)
            now = time.monotonic()
            while self._leftovers and self._leftovers[0][0] <= now:
                kill_group(self._leftovers.pop(0)[1])
            for pid in [pid for pid, late in self._strays.items() if late <= now]:
                del self._strays[pid]
                kill_family(pid)

    def _shut_down(self) -> NoReturn:
        for session in list(self._sessions):
            self._kill_session(session)
        for _, group in self._leftovers:
            kill_group(group)
        kill_children()
        os._exit(0)

    def _new_session(self) -> None:
        received = _receive(self._control)
        if received is None:
            self._shut_down()
        (fd,) = received[1]
        session = socket.socket(fileno=fd)
        self._sessions[session] = {}
        self._is_used = True
        self._selector.register(
            session, selectors.EVENT_READ, lambda: self._session_readable(session)
        )

    def _session_readable(self, session: socket.socket) -> None:
        received = _receive(session)
        if received is None:
            self._kill_session(session)
            self._selector.unregister(session)
            del self._sessions[session]
            session.close()
            return
        message, files = received
        if isinstance(message, Spawn):
            self._spawn(session, message, files)
        elif isinstance(message, Interrupt):
            for pid in self._sessions[session]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
        elif isinstance(message, DumpStacks):
            for pid, rank in self._sessions[session].items():
                if rank == message.rank:
                    os.kill(pid, STACK_SIGNAL)
        elif isinstance(message, Kill):
            self._kill_session(session, message.rank)

    def _kill_session(self, session: socket.socket, only: int | None = None) -> None:
        for pid, rank in self._sessions[session].items():
            if only is None or rank == only:
                self._killed.add(pid)  # so that its SIGKILL is not taken for the kernel's
                kill_family(pid)

    def _spawn(self, session: socket.socket, spawn: Spawn, files: list[int]) -> None:
        known_oom_kills = oom_kills()
        # The worker starts with the server's handlers: until it has its own, a signal would be
        # lost, or would end every worker. Blocked signals are delivered once they are unblocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_AT_FORK)
        self._blas_threads.follow(spawn.environment)
        try:
            pid = os.fork()
        except OSError as error:
            detail = f"it could not be forked: {error.strerror}"
            self._notify(session, Ended(spawn.rank, None, detail))
        else:
            if pid == 0:
                _run_worker(self, spawn, *files)
            # Parent and child both set the group: whichever runs first, the group can be killed.
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            self._sessions[session][pid] = spawn.rank
            self._oom_kills[pid] = known_oom_kills
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_AT_FORK)
        for fd in files:
            os.close(fd)

    def forget(self) -> None:
        """In a worker: release every handler and file that belongs to the server."""
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(name, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        self._wakeup.close()
        for sock in (self._control, *self._sessions):
            sock.close()
        if self._keeper_fd is not None:
            os.close(self._keeper_fd)

    def _children_ended(self) -> None:
        self._wakeup.drain()
        while True:
            try:
                # WNOWAIT: while the process is not reaped, its process group's number cannot be
                # given to another group, and so the group can be killed safely.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            exitcode = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            self._child_ended(ended.si_pid, exitcode)

    def _child_ended(self, pid: int, exitcode: int) -> None:
        session = next((s for s, workers in self._sessions.items() if pid in workers), None)
        if session is None:  # a process that some worker left behind
            os.waitpid(pid, 0)
            self._end_strays(self._strays.pop(pid, None))  # its children have come here
            return
        clean = exitcode == 0
        # After a clean exit the processes left behind get time to end; after a crash they do not.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGTERM if clean else signal.SIGKILL)
        _, _, usage = os.wait4(pid, 0)
        if clean and group_exists(pid):
            self._leftovers.append((time.monotonic() + LEFTOVER_GRACE_S, pid))
        rank = self._sessions[session].pop(pid)
        self._end_strays(time.monotonic() + LEFTOVER_GRACE_S if clean else None, pid)
        self._notify(session, Ended(rank, exitcode, self._detail(pid, exitcode, usage.ru_maxrss)))

    def _detail(self, pid: int, exitcode: int, peak: int) -> str:
        """What else is known about a SIGKILL that is not this server's."""
        out_of_memory = self._ran_out_of_memory(pid, exitcode)
        killed_here = pid in self._killed
        self._killed.discard(pid)
        if exitcode != -signal.SIGKILL or killed_here:
            return ""
        memory = describe_memory(peak * (1 if sys.platform == "darwin" else 1024))
        return f"{OUT_OF_MEMORY}; {memory}" if out_of_memory else memory

    def _end_strays(self, deadline: float | None, group: int = 0) -> None:
        """End the children of this process that are no workers: their worker has ended.

        Those that have left its process group were not reached with it. Which worker it was cannot
        be seen any more: what two that end at the same moment leave is treated alike.

        Args:
            deadline: they get a SIGTERM now and a SIGKILL then; None: they are killed now.
            group: the members of this group have got the SIGTERM already.
        """
        workers = {pid for pids in self._sessions.values() for pid in pids}
        for pid in children(os.getpid()):
            if pid in workers or pid in self._strays:
                continue
            if deadline is None:
                kill_family(pid)
                continue
            self._strays[pid] = deadline
            for member in (pid, *descendants(pid)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if os.getpgid(member) != group:
                        os.kill(member, signal.SIGTERM)

    def _ran_out_of_memory(self, pid: int, exitcode: int) -> bool:
        known = self._oom_kills.pop(pid)
        if exitcode != -signal.SIGKILL or pid in self._killed or oom_kills() <= known:
            return False
        # This kill is accounted for: it must not explain the end of another worker, too.
        for other in self._oom_kills:
            self._oom_kills[other] += 1
        return True

    def _notify(self, session: socket.socket, message: Ended) -> None:
        with contextlib.suppress(OSError):  # the driver has closed the session
            send_with_files(session, message, [])


def _receive(sock: socket.socket) -> tuple[Any, list[int]] | None:
    try:
        return receive_with_files(sock)
    except (OSError, EOFError, EngineError):
        return None


def _run_worker(server: _Server, spawn: Spawn, socket_fd: int, output_fd: int) -> NoReturn:
    exitcode = 1
    try:
        # The signals stay blocked until the worker has its own handlers, below.
        server.forget()
        _become_worker(spawn, output_fd)
        sock = socket.socket(fileno=socket_fd)
        # Without its driver a worker ends, with every process it has started.
        channel = SocketChannel(spawn.rank, sock, end_own_family)
        channel.node = spawn.node
        _handle_signals(channel)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_AT_FORK)
            channel.send(Started(os.getpid()))
            exitcode = pkgutil.resolve_name(spawn.entry)(channel)
        finally:
            channel.close()
    except KeyboardInterrupt:
        exitcode = 130
    except BaseException:
        traceback.print_exc()
    _exit_cleanly(exitcode)


def _become_worker(spawn: Spawn, output_fd: int) -> None:
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    adopt_orphans()
    _set_worker_title(spawn)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output_fd)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _open_stream(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _open_stream(2, "backslashreplace")  # type: ignore[misc]
    # The handler is in C, so it works while the interpreter is stuck.
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=True)
    faulthandler.enable(file=2, all_threads=False)  # a crash leaves its stack in the log
    answer_requests()
    os.environ.clear()
    os.environ.update(spawn.environment)
    sys.path[:] = spawn.sys_path
    sys.argv[:] = spawn.argv
    importlib.invalidate_caches()
    with contextlib.suppress(OSError):
        os.chdir(spawn.cwd)
    # A fork copies the server's random state: all workers of all runs would draw the same numbers.
    random.seed()
    if "numpy.random" in sys.modules:  # else its import, which takes long, seeds it
        sys.modules["numpy.random"].seed()


def _set_worker_title(spawn: Spawn) -> None:
    name, _, _ = spawn.title.partition(": rank")
    set_title(spawn.title, name, f":{spawn.rank}")
    # What the worker forks (a loader of data) would otherwise be called like the worker itself.
    os.register_at_fork(after_in_child=lambda: set_title(f"{spawn.title}, child", name, "-child"))


def _handle_signals(channel: SocketChannel) -> None:
    """Install the worker's handlers of SIGINT and SIGTERM.

    SIGINT raises KeyboardInterrupt, but not inside a message. SIGTERM notifies the driver; a
    process that this worker forks gets the default handler, and ends on SIGTERM as usual.
    """
    signal.signal(signal.SIGINT, lambda *_: channel.interrupt())
    drop = sys.unraisablehook

    def repeat(dropped: sys.UnraisableHookArgs) -> None:
        # Python drops an exception in a destructor or in the callback of a weak reference (every
        # import has one). A Ctrl-C that arrives there would be lost.
        if dropped.exc_type is KeyboardInterrupt:
            channel.interrupt_again()
        else:
            drop(dropped)

    sys.unraisablehook = repeat

    def announce(signum: int, frame: FrameType | None) -> None:
        channel.announce_termination()

    # Python clears its list of pending signals in a forked child. A SIGTERM that arrives before the
    # child has the default handler would be lost, so SIGTERM is blocked during a fork.
    mask = threading.local()

    def before_fork() -> None:
        mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.before)

    def in_child() -> None:
        if signal.getsignal(signal.SIGTERM) is announce:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        in_parent()

    signal.signal(signal.SIGTERM, announce)
    os.register_at_fork(before=before_fork, after_in_parent=in_parent, after_in_child=in_child)


def _open_stream(fd: int, errors: str) -> TextIOWrapper:
    return open(fd, "w", buffering=1, errors=errors, closefd=False)


def _exit_cleanly(exitcode: int) -> NoReturn:
    """Exit as the interpreter does (threads, atexit, flush), but without destroying modules."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the user may have closed or replaced it
                stream.flush()
        os._exit(exitcode)
