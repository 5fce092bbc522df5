"""Lends the driver's terminal to one rank at a time, for a debugger."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from lockstep.console import Display
from lockstep.engine.loop import EventLoop
from lockstep.train.protocol import Terminal

__all__ = ["TerminalLoan"]

_NO_TERMINAL = (
    "breakpoint(): the driver has no terminal to debug on. Run it on a terminal (not in a pipe, a "
    "notebook or the background), or use ScalingConfig(num_workers=0), which runs the function in "
    "the driver's own process."
)

# All runs of this process share its terminal. The first in the queue has it.
_queue: deque[tuple[TerminalLoan, int]] = deque()
_lock = threading.Lock()


class TerminalLoan:
    """The loans of one run. From its loop's thread.

    Args:
        loop: the run's.
        display: paused while a rank has the terminal.
        answer: sends a rank what it asked for.
    """

    def __init__(
        self, loop: EventLoop, display: Display, answer: Callable[[int, Terminal], None]
    ) -> None:
        self._loop = loop
        self._display = display
        self._answer = answer
        self._holder: int | None = None

    @property
    def wanted(self) -> bool:
        """Whether a rank of this run has the terminal, or waits for it."""
        return any(loan is self for loan, _ in tuple(_queue))

    def request(self, rank: int) -> None:
        """Lend the terminal to a rank when it is free."""
        if _driver_terminal() is None:
            self._answer(rank, Terminal(None, _NO_TERMINAL))
            return
        with _lock:
            _queue.append((self, rank))
            is_first = len(_queue) == 1
        if is_first:
            self._lend(rank)

    def end(self, rank: int) -> None:
        """A rank has returned the terminal, or has ended."""
        with _lock:
            had_it = bool(_queue) and _queue[0] == (self, rank)
            if (self, rank) in _queue:
                _queue.remove((self, rank))
            following = _queue[0] if had_it and _queue else None
        if self._holder == rank:
            self._holder = None
            self._display.resume()
        if following is not None:
            loan, other = following
            # The next in the queue may belong to a run on another thread's loop.
            loan._loop.call_soon(lambda: loan._lend(other))

    def _lend(self, rank: int) -> None:
        with _lock:
            if not _queue or _queue[0] != (self, rank):
                return  # the rank has ended before it got the terminal
        self._holder = rank
        self._display.pause()
        self._answer(rank, Terminal(_driver_terminal(), _NO_TERMINAL))


def _driver_terminal() -> str | None:
    """The path of the terminal that this process reads from; None without one."""
    try:
        if not os.isatty(0):
            return None
        try:
            if os.tcgetpgrp(0) != os.getpgrp():
                return None  # in the background: the user types to another program
        except OSError:
            pass  # not this process's controlling terminal: there is no foreground
        # By this path also where the terminal's device is not visible, as in a container.
        path = f"/proc/{os.getpid()}/fd/0"
        return path if os.path.exists(path) else os.ttyname(0)
    except OSError:
        return None
