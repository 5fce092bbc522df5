"""The warm fork server: a small process that has imported the framework and forks workers from it.

It runs no user code, has no thread when it forks and never touches a GPU, so forking it is safe and
takes milliseconds. It is the parent of every worker: it sees how each one ends, and it ends them
all when the driver is gone, however the driver died.

    driver ── control socket ──▶ server      one: hands over a session socket for each worker group
    driver ◀─ session socket ──▶ server      Spawn (with the worker's socket and log pipe) / Ended
    driver ◀─ worker socket ───▶ worker      everything else
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import os
import random
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from lockstep.engine.base import OUT_OF_MEMORY
from lockstep.engine.processes import (
    STACK_SIGNAL,
    group_exists,
    kill_children,
    kill_family,
    kill_group,
    oom_kills,
    process_handle,
)
from lockstep.engine.resources import BlasThreads
from lockstep.engine.wire import SocketChannel, receive_with_files, send_with_files

__all__ = [
    "CLOSE_SIGNAL",
    "DumpStacks",
    "Ended",
    "Interrupt",
    "Kill",
    "Spawn",
    "Started",
    "main",
]

LEFTOVER_GRACE_S = 1.0
"""How long processes that a cleanly exited worker left behind may take to end by themselves."""

THREADS_LATE_S = 3.0
"""How long the end of a worker waits for threads of the user's before it says so."""

PARENT_CHECK_S = 1.0
"""How often to look whether the driver lives, where the system does not tell."""

CLOSE_SIGNAL = signal.SIGRTMIN + 6 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR1
"""Ends the server. Not SIGTERM: where every process of a job gets one, workers must save."""

_HELD_BACK = {signal.SIGINT, signal.SIGTERM, CLOSE_SIGNAL}


class Spawn(NamedTuple):
    """Fork one worker; its socket and the pipe for its output come along."""

    rank: int
    entry: str
    environment: dict[str, str]
    sys_path: list[str]
    argv: list[str]
    cwd: str


class Interrupt(NamedTuple):
    """SIGINT to every worker of this session."""


class DumpStacks(NamedTuple):
    """Let one worker write its threads' stacks to its stderr."""

    rank: int


class Kill(NamedTuple):
    """SIGKILL to every worker of this session, and to the processes they started."""


class Started(NamedTuple):
    """A worker's own first message: the driver ends it should this server be killed."""

    pid: int


class Ended(NamedTuple):
    """A worker's process is gone (to the driver)."""

    rank: int
    exitcode: int | None
    detail: str = ""


def main(control_fd: int, driver_pid: int, preload: list[str]) -> None:
    """Serve until the driver is gone."""
    for name in preload:
        try:
            importlib.import_module(name)
        except Exception as error:
            # The worker imports it again and fails where the user can see it.
            print(f"lockstep: could not import {name} ahead of time: {error}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # or every worker would print what is buffered here
    gc.collect()
    gc.freeze()  # pages of what is imported stay shared with the workers
    _adopt_orphans()
    _Server(socket.socket(fileno=control_fd), driver_pid).run()


def _adopt_orphans() -> None:
    """Processes that workers leave behind become this process's children, and are reaped."""
    if sys.platform == "linux":
        import ctypes

        pr_set_child_subreaper = 36
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


class _Server:
    def __init__(self, control: socket.socket, driver_pid: int) -> None:
        self._blas_threads = BlasThreads()
        self._control = control
        self._driver_pid = driver_pid
        self._selector = selectors.DefaultSelector()
        self._sessions: dict[socket.socket, dict[int, int]] = {}  # session → pid → rank
        self._oom_kills: dict[int, int] = {}  # pid → how many there were before it
        self._killed: set[int] = set()
        self._leftovers: list[tuple[float, int]] = []  # when to kill, process group
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector.register(control, selectors.EVENT_READ, self._new_session)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._children_ended)
        self._driver_fd = process_handle(driver_pid)
        if self._driver_fd is not None:
            self._selector.register(self._driver_fd, selectors.EVENT_READ, self._shut_down)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(CLOSE_SIGNAL, lambda *_: self._shut_down())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)

    def run(self) -> NoReturn:
        while True:
            # The driver is the parent; its death before its handle was opened shows here only.
            if os.getppid() != self._driver_pid:
                self._shut_down()
            timeout = None if self._driver_fd is not None else PARENT_CHECK_S
            if self._leftovers:
                timeout = max(0.0, self._leftovers[0][0] - time.monotonic())
            for key, _ in self._selector.select(timeout):
                key.data()
            while self._leftovers and self._leftovers[0][0] <= time.monotonic():
                kill_group(self._leftovers.pop(0)[1])

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
            self._kill_session(session)

    def _kill_session(self, session: socket.socket) -> None:
        for pid in self._sessions[session]:
            self._killed.add(pid)
            kill_family(pid)

    def _spawn(self, session: socket.socket, spawn: Spawn, files: list[int]) -> None:
        known_oom_kills = oom_kills()
        # A signal that finds the worker with the server's handlers would be lost, or end them all.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
        self._blas_threads.follow(spawn.environment)
        try:
            pid = os.fork()
        except OSError as error:
            detail = f"it could not be forked: {error.strerror}"
            self._notify(session, Ended(spawn.rank, None, detail))
        else:
            if pid == 0:
                _run_worker(self, spawn, *files)
            # Both sides set the group: whichever runs first, killing the group reaches the worker.
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            self._sessions[session][pid] = spawn.rank
            self._oom_kills[pid] = known_oom_kills
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
        for fd in files:
            os.close(fd)

    def forget(self) -> None:
        """In a worker: let go of everything that is the server's."""
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGTERM, signal.SIGCHLD, CLOSE_SIGNAL):
            signal.signal(name, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        for sock in (self._control, self._wake_read, self._wake_write, *self._sessions):
            sock.close()
        if self._driver_fd is not None:
            os.close(self._driver_fd)

    def _children_ended(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_read.recv(4096)
        while True:
            try:
                # Not reaped yet, so that the process group's number cannot be anyone else's.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            clean = ended.si_code == os.CLD_EXITED and ended.si_status == 0
            exitcode = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            self._worker_ended(ended.si_pid, exitcode, clean)

    def _worker_ended(self, pid: int, exitcode: int, clean: bool) -> None:
        session = next((s for s, workers in self._sessions.items() if pid in workers), None)
        if session is None:
            os.waitpid(pid, 0)  # an orphan of some worker
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGTERM if clean else signal.SIGKILL)
        os.waitpid(pid, 0)
        if clean and group_exists(pid):
            self._leftovers.append((time.monotonic() + LEFTOVER_GRACE_S, pid))
        rank = self._sessions[session].pop(pid)
        detail = OUT_OF_MEMORY if self._ran_out_of_memory(pid, exitcode) else ""
        self._notify(session, Ended(rank, exitcode, detail))

    def _ran_out_of_memory(self, pid: int, exitcode: int) -> bool:
        known = self._oom_kills.pop(pid)
        killed_here = pid in self._killed
        self._killed.discard(pid)
        if exitcode != -signal.SIGKILL or killed_here or oom_kills() <= known:
            return False
        for other in self._oom_kills:  # that one is accounted for
            self._oom_kills[other] += 1
        return True

    def _notify(self, session: socket.socket, message: Ended) -> None:
        with contextlib.suppress(OSError):
            send_with_files(session, message, [])


def _receive(sock: socket.socket) -> tuple[Any, list[int]] | None:
    try:
        return receive_with_files(sock)
    except (OSError, EOFError):
        return None


def _end_own_group() -> None:
    os.killpg(os.getpid(), signal.SIGKILL)


def _run_worker(server: _Server, spawn: Spawn, socket_fd: int, output_fd: int) -> NoReturn:
    exitcode = 1
    try:
        server.forget()
        _become_worker(spawn, output_fd)
        channel = SocketChannel(spawn.rank, socket.socket(fileno=socket_fd), _end_own_group)
        _handle_signals(channel)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
            channel.send(Started(os.getpid()))
            entry = _load_entry(spawn.entry)
            exitcode = entry(channel)
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
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output_fd)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _open_stream(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _open_stream(2, "backslashreplace")  # type: ignore[misc]
    # Written by a handler in C: it works while the interpreter is stuck.
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=True)
    os.environ.clear()
    os.environ.update(spawn.environment)
    sys.path[:] = spawn.sys_path
    sys.argv[:] = spawn.argv
    importlib.invalidate_caches()
    with contextlib.suppress(OSError):
        os.chdir(spawn.cwd)
    # Every worker is forked with the server's generators: alike, and alike from run to run.
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _handle_signals(channel: SocketChannel) -> None:
    """SIGINT raises KeyboardInterrupt, though not inside a message; SIGTERM is a notice to the
    driver, and processes that this one forks die of it as usual."""
    signal.signal(signal.SIGINT, lambda *_: channel.interrupt())
    drop = sys.unraisablehook

    def repeat(dropped: sys.UnraisableHookArgs) -> None:
        # A destructor, or the callback of a weak reference (every import has one): an exception
        # goes no further there, and Ctrl-C would be lost.
        if dropped.exc_type is KeyboardInterrupt:
            channel.interrupt_again()
        else:
            drop(dropped)

    sys.unraisablehook = repeat

    def announce(signum: int, frame: FrameType | None) -> None:
        channel.announce_termination()

    # Python forgets in a forked child which signals came before it got to run: one that comes so
    # early has to wait until the handler is gone.
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


def _load_entry(name: str) -> Callable[[SocketChannel], int]:
    module, _, function = name.partition(":")
    entry: Callable[[SocketChannel], int] = getattr(importlib.import_module(module), function)
    return entry


def _threads_to_wait_for() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]


def _warn_of_threads(threads: list[threading.Thread]) -> None:
    names = ", ".join(thread.name for thread in threads if thread.is_alive())
    if names:
        print(
            f"lockstep: the function is over, but its thread(s) {names} still run, so the "
            "worker waits: end them in the function, or make them daemon threads.",
            file=sys.stderr,
            flush=True,
        )


def _exit_cleanly(exitcode: int) -> NoReturn:
    """What the interpreter does at exit, as far as users notice, without tearing modules down."""
    try:
        if threads := _threads_to_wait_for():
            late = threading.Timer(THREADS_LATE_S, _warn_of_threads, (threads,))
            late.daemon = True
            late.start()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the user may have closed or replaced it
                stream.flush()
        os._exit(exitcode)
