"""A process of a pool: calls a function on the tables that it receives, one after the other.

Ctrl-C and SIGTERM are for the process that started it. It ends when that process closes the
socket, or ends.
"""

from __future__ import annotations

import io
import os
import queue
import select
import signal
import socket
import sys
import threading
from typing import Any

from lockstep import ray_names
from lockstep.data.processes.wire import FAILED, READY, receive, send_object, send_table
from lockstep.engine.titles import set_title
from lockstep.error_record import pack_error

__all__ = ["main"]

_WATCH_S = 1.0
"""How often the child checks that its parent lives: a forked process may keep the socket open."""
_EXIT_S = 5.0
"""How long a call that runs may take to end after the parent is gone."""


def main(fd: int, parent: int, name: str) -> None:
    """Serve the pool on the other end of a socket; ``name`` says what runs here."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    set_title(f"lockstep data: {name}", "lockstep data")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where the parent has none
            stream.reconfigure(line_buffering=True)  # what a user's function prints is seen at once
    ray_names.install_in_worker()
    sock = socket.socket(fileno=fd)
    tables: queue.SimpleQueue[Any] = queue.SimpleQueue()
    try:
        function = _function(sock)
    except EOFError:
        return
    threading.Thread(target=_read, args=(sock, parent, tables), daemon=True).start()
    try:
        _serve(sock, function, tables)
    except OSError:  # nobody is there to read the answer
        return


def _function(sock: socket.socket) -> Any:
    """The function to call; an error in loading it is sent instead of "ready"."""
    import cloudpickle

    # Sent as bytes: its own modules are imported in the try below, so errors can be sent back.
    _, pickled = receive(sock)
    try:
        import pyarrow as pa

        pa.set_cpu_count(1)  # the pool has a process for each core
        function = cloudpickle.loads(pickled)
    except BaseException as error:
        send_object(sock, FAILED, pack_error(error))
        raise EOFError("the function could not be loaded") from error
    send_object(sock, READY, os.getpid())
    return function


def _read(sock: socket.socket, parent: int, tables: queue.SimpleQueue[Any]) -> None:
    """Read tables before they are needed: the pool may send one while an answer is on its way."""
    try:
        while True:
            while not select.select([sock], [], [], _WATCH_S)[0]:
                if os.getppid() != parent:
                    raise EOFError("the parent is gone")
            tables.put(receive(sock)[1])
    except (EOFError, OSError):
        tables.put(None)
    # The main thread ends the process; but not while it is in a user's function.
    threading.Event().wait(_EXIT_S)
    os._exit(1)


def _serve(sock: socket.socket, function: Any, tables: queue.SimpleQueue[Any]) -> None:
    while (table := tables.get()) is not None:
        try:
            result = function(table)
        except BaseException as error:
            send_object(sock, FAILED, pack_error(error))
        else:
            send_table(sock, result)
        # Freed before the wait for the next table, which may take long.
        table = result = None
