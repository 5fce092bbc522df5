"""A pool of processes that call one function on tables.

```
pool.submit(table) ─▶ tasks ─▶ feeder thread ── socket ──▶ process
                                   │  ◀──────── table, or the error ──┘
                                Future
```

A process is started for a task that no other one is free for, up to the size of the pool. One that
had nothing to do for a while ends, and so does a process whose pool is dropped. A feeder sends a
table while the one before is worked on, so that its process never waits for it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

from lockstep import settings
from lockstep.data.processes.wire import FAILED, READY, receive, send_object, send_table
from lockstep.error_record import unpack_error
from lockstep.errors import DataProcessError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ProcessPool"]

IDLE_S = 60.0
"""How long a process without tasks is kept."""
_AT_ONCE = 2
"""How many tables a process has: one that it works on, and the next."""
_EXIT_S = 5.0
"""How long a process may take to end before it is killed."""

_Task = tuple["pa.Table", "Future[pa.Table]"]


class ProcessPool:
    """Calls a function on tables in up to ``size`` processes.

    ``close()``, or dropping the last reference, ends the processes. Safe to use from several
    threads; useless in a forked child (``usable`` says so).

    Args:
        function: as cloudpickle has pickled it: from a table to a table.
        size: the largest number of processes.
        name: what runs in them, for errors and the list of processes.
    """

    def __init__(self, function: bytes, size: int, name: str) -> None:
        self.size = size
        self._shared = _Shared(function, size, name)
        # The feeders hold the shared part only, so that dropping the pool ends them.
        self._end = weakref.finalize(self, self._shared.close)
        _notice_exit()

    @property
    def usable(self) -> bool:
        """Whether this is the process that made it, and it is not closed."""
        return self._shared.owner == os.getpid() and self._end.alive

    def submit(self, table: pa.Table) -> Future[pa.Table]:
        """Call the function on a table; the future has its result, or the user's error."""
        future: Future[pa.Table] = Future()
        self._shared.add((table, future))
        return future

    def close(self) -> None:
        """End the processes; calls that run are abandoned."""
        self._end()


_exiting = threading.Event()
"""The program ends and closes its pools: threads that still read must not start others."""


@functools.cache
def _notice_exit() -> None:
    # Called after the first finalize(), so it runs before pools are closed at exit.
    atexit.register(_exiting.set)


class _Shared:
    """The part of a pool that its feeders use."""

    def __init__(self, function: bytes, size: int, name: str) -> None:
        self.function, self.size, self.name = function, size, name
        self.owner = os.getpid()
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.lock = threading.RLock()  # a pool may be dropped, and so closed, at any moment
        self.feeders: set[_Feeder] = set()
        self.idle = 0
        """How many feeders wait for a task, or were started for one."""
        self.closed = False

    def add(self, task: _Task) -> None:
        with self.lock:
            if self.closed or _exiting.is_set():
                raise RuntimeError("The pool of processes is closed.")
            self.tasks.put(task)
            self._start_feeder()

    def leave(self, feeder: _Feeder) -> bool:
        """A feeder ends; True if it was the last one."""
        with self.lock:
            self.feeders.discard(feeder)
            self.idle -= feeder.idle
            return not self.feeders

    def replace(self) -> None:
        """A feeder has ended because there was no task, and one may have come just then."""
        with self.lock:
            if not self.closed:
                self._start_feeder()

    def _start_feeder(self) -> None:
        if self.tasks.qsize() > self.idle and len(self.feeders) < self.size:
            feeder = _Feeder(self)
            self.feeders.add(feeder)
            self.idle += 1
            feeder.thread.start()

    def close(self) -> None:
        if self.owner != os.getpid():  # a forked child: the processes are its parent's
            return
        with self.lock:
            self.closed = True
            feeders = list(self.feeders)
        for feeder in feeders:
            # One for each feeder: it wakes a feeder that waits for a task.
            self.tasks.put(None)
            feeder.stop()
        threads = [feeder.thread for feeder in feeders]
        # A feeder may drop the last reference to the pool, and cannot wait for itself.
        if threading.current_thread() not in threads:
            for thread in threads:
                thread.join()


class _Feeder:
    """One process, and the thread that sends it tables and receives its answers."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stopped = False
        self._ready = False
        self._sent: deque[_Task] = deque()
        self.idle = True
        self.thread = threading.Thread(target=self._work, name="lockstep-data-feed", daemon=True)

    def stop(self) -> None:
        """Make the thread end: what it waits for on the socket never comes."""
        self._stopped = True
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            self._start()
            self._feed()
        except BaseException as caught:
            error = caught
        finally:
            self._leave(error)

    def _feed(self) -> None:
        sock = self._socket
        assert sock is not None
        while not self._stopped:
            while len(self._sent) < _AT_ONCE:
                task = self._next_task()
                if task is None:
                    break
                self._sent.append(task)
                # After the append: if sending fails, the task is among those to fail.
                send_table(sock, task[0])
            if not self._sent:
                return
            kind, value = receive(sock)
            _, future = self._sent.popleft()
            if kind == FAILED:
                future.set_exception(unpack_error(value))
            else:
                future.set_result(value)

    def _next_task(self) -> _Task | None:
        """A task, None where there is none: without waiting if an answer is on its way."""
        shared = self._shared
        while True:
            if self._sent and shared.tasks.qsize() <= shared.idle:
                return None  # it is for a process that has nothing to do
            if not self._sent:
                self._set_idle(True)
            try:
                task = shared.tasks.get(block=not self._sent, timeout=IDLE_S)
            except queue.Empty:
                return None
            self._set_idle(False)
            if task is None or task[1].set_running_or_notify_cancel():
                return task

    def _set_idle(self, idle: bool) -> None:
        if idle != self.idle:
            with self._shared.lock:
                self._shared.idle += 1 if idle else -1
                self.idle = idle

    def _start(self) -> None:
        shared = self._shared
        here, there = socket.socketpair()
        # Where this process has no stdin, stdout or stderr, the socket may have got that number.
        fd = fcntl.fcntl(there.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        there.close()
        path = [entry or os.getcwd() for entry in sys.path]
        code = (
            f"import sys; sys.path[:] = {path!r}; "
            "from lockstep.data.processes.child import main; "
            f"main({fd}, {os.getpid()}, {shared.name!r})"
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # private
        signals = {signal.SIGINT, signal.SIGTERM}
        # The child is born with these blocked, and ignores them before it unblocks them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            self._process = subprocess.Popen(
                [sys.executable or "python", *flags, "-c", code],
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                env=settings.child_environment({"OMP_NUM_THREADS": "1"}),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(fd)
            self._socket = here
        send_object(here, READY, shared.function)
        kind, value = receive(here)
        if kind == FAILED:
            raise unpack_error(value)
        self._ready = True

    def _leave(self, error: BaseException | None) -> None:
        """End the process, and fail what was sent to it."""
        shared = self._shared
        if isinstance(error, (EOFError, OSError)):
            error = self._died()
        self._end_process()
        last = shared.leave(self)
        if error is None:
            shared.replace()
            return
        waiting = list(self._sent)
        if last:  # nobody else would do them
            with contextlib.suppress(queue.Empty):
                while (task := shared.tasks.get_nowait()) is not None:
                    waiting.append(task)
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

    def _died(self) -> BaseException:
        process, name = self._process, self._shared.name
        if process is None or self._stopped:
            return DataProcessError(f"The processes of {name} were ended.")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_S)
        code = process.returncode
        how = "ended" if code is None else f"exited with code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (by the kernel, if memory ran out)"
        text = f"Process {process.pid} of {name} {how}"
        if not self._sent:
            return DataProcessError(f"{text} before it had any rows.")
        return DataProcessError(
            f"{text} while it had {self._sent[0][0].num_rows} rows; use fewer processes "
            "(concurrency) or smaller batches if memory is short."
        )

    def _end_process(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is None:
            return
        if self._sent or not self._ready:  # nobody waits for what it does
            self._process.kill()
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
