"""The keeper of a fork server: its parent, which ends everything when driver or server is gone.

It imports no framework and does nothing but wait. The kernel makes it the parent of every process
whose own parent has ended, so it finds all of them, whichever of the others was killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from typing import NoReturn

from lockstep.engine.processes import kill_children, process_handle
from lockstep.engine.wakeup import Wakeup

__all__ = ["CLOSE_SIGNAL", "PARENT_CHECK_S", "fork_server"]

CLOSE_SIGNAL = signal.SIGRTMIN + 6 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR1
"""Ends the keeper, and so the server. Not SIGTERM: a batch system sends one to every process of a
job, and then the workers must have time to save."""

PARENT_CHECK_S = 1.0
"""How often to check that the parent runs, where the system has no process handles."""


def fork_server(driver_pid: int, control_fd: int, *, is_child: bool = True) -> None:
    """Fork the server, return in it, and keep watch in this process.

    The descriptor is the server's: where the server ends, the driver must see it closed.
    ``is_child``: this process is the driver's child; otherwise a warm server has forked it.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    wakeup = Wakeup()
    closing: list[int] = []
    signal.signal(CLOSE_SIGNAL, lambda *_: closing.append(1))
    # Python writes to the wake-up pipe only for signals that have a handler.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup.signal_fd, warn_on_full_buffer=False)
    server = os.fork()
    if server == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(CLOSE_SIGNAL, signal.SIG_DFL)
        wakeup.close()
        return
    os.close(control_fd)
    selector = selectors.DefaultSelector()
    selector.register(wakeup, selectors.EVENT_READ)
    driver = process_handle(driver_pid)
    if driver is not None:
        selector.register(driver, selectors.EVENT_READ)
    # If a parent died before its handle was opened, only getppid shows it.
    gone = driver is None and not is_child
    while not closing and not gone and (not is_child or os.getppid() == driver_pid):
        status = _ended(server)
        if status is not None:
            kill_children()
            _end_like(status)
        ready = selector.select(None if driver is not None else PARENT_CHECK_S)
        gone = any(key.fileobj == driver for key, _ in ready)
        wakeup.drain()
    kill_children()
    os._exit(0)


def _ended(server: int) -> int | None:
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, ending = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == server:
                status = ending
    return status


def _end_like(status: int) -> NoReturn:
    """End as the server did, so that the driver sees the server's exit code."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))
