"""``breakpoint()`` in a worker: pdb on the driver's terminal, which one rank has at a time.

A rank keeps the terminal from its first stop until its user continues (``c``), so that single steps
are one conversation. The panel and the hang watch pause during that time; the other ranks wait for
this one at their next report or collective, and at their own breakpoints for the terminal.
"""

from __future__ import annotations

import os
import pdb
import sys
from bdb import BdbQuit
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TextIO

from lockstep import settings

__all__ = ["Debugging", "stop_in"]


class Debugging:
    """Inside this context ``breakpoint()`` and ``pdb.set_trace()`` use the driver's terminal.

    Args:
        rank: this worker's, for the prompt.
        borrow: asks the driver for its terminal, waits for it, and returns its path.
        give_back: notifies the driver that the terminal is free again.
    """

    def __init__(self, rank: int, borrow: Callable[[], str], give_back: Callable[[], None]) -> None:
        self.rank = rank
        self._borrow = borrow
        self._give_back = give_back
        self._before = sys.breakpointhook, pdb.set_trace
        self._terminal: tuple[TextIO, TextIO] | None = None

    def __enter__(self) -> Debugging:
        sys.breakpointhook = self._hook
        pdb.set_trace = self._set_trace
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.breakpointhook, pdb.set_trace = self._before
        if self._terminal is not None:
            sys.settrace(None)  # the function has ended while its user stepped through it
            self.release()
        if kind is BdbQuit:
            raise KeyboardInterrupt from None  # "q" ends the run, and the run can be restored

    def acquire(self) -> tuple[TextIO, TextIO]:
        """The terminal, to read from and to write to; waits until the driver lends it.

        Raises:
            RuntimeError: the driver has no terminal.
        """
        if self._terminal is None:
            # The terminal must not become this process's own: its Ctrl-C goes to the driver.
            fd = os.open(self._borrow(), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            reader = open(fd, encoding="utf-8", errors="replace")  # noqa: SIM115  # stays open
            writer = open(  # noqa: SIM115  # stays open
                os.dup(fd), "w", buffering=1, encoding="utf-8", errors="backslashreplace"
            )
            self._terminal = reader, writer
            print(
                f"Rank {self.rank} has stopped at a breakpoint; the other ranks wait. "
                "c continues, q ends the run.",
                file=writer,
            )
        return self._terminal

    def release(self) -> None:
        """Give the terminal back, if this rank has it."""
        if self._terminal is not None:
            terminal, self._terminal = self._terminal, None
            for file in terminal:
                file.close()
            self._give_back()

    def _hook(self, *args: Any, **options: Any) -> Any:
        if settings.chooses_debugger():
            return sys.__breakpointhook__(*args, **options)
        self._stop(sys._getframe(1), *args, **options)

    def _set_trace(self, **options: Any) -> None:
        self._stop(sys._getframe(1), **options)

    def stop_in(self, frame: FrameType) -> None:
        """Stop at the next line of this frame, which is further out than the caller."""
        stop_in(_WorkerPdb(self, *self.acquire()), frame)

    def _stop(self, frame: FrameType, *, header: str | None = None) -> None:
        reader, writer = self.acquire()
        if header is not None:
            print(header, file=writer)
        # Nothing after this: the debugger would stop there.
        _WorkerPdb(self, reader, writer).set_trace(frame)


def stop_in(debugger: pdb.Pdb, frame: FrameType) -> None:
    """As ``debugger.set_trace(frame)``, but no line of a frame further in is stopped at."""
    debugger.reset()
    outer: FrameType | None = frame
    while outer is not None:
        outer.f_trace = debugger.trace_dispatch
        debugger.botframe = outer
        outer = outer.f_back
    debugger.set_next(frame)
    sys.settrace(debugger.trace_dispatch)


class _WorkerPdb(pdb.Pdb):
    def __init__(self, debugging: Debugging, reader: TextIO, writer: TextIO) -> None:
        # nosigint: the handler of SIGINT is the worker's own. skip: nobody steps through lockstep.
        super().__init__(stdin=reader, stdout=writer, skip=["lockstep.*"], nosigint=True)
        self.prompt = f"(Pdb rank {debugging.rank}) "
        self._debugging = debugging
        self._continues = False

    def interaction(self, *args: Any, **options: Any) -> None:
        """Talk to the user, and keep the terminal unless the user lets the function continue."""
        self.stdin, self.stdout = self._debugging.acquire()
        self._continues = False
        super().interaction(*args, **options)
        if self._continues:
            self._debugging.release()

    def set_continue(self) -> None:
        self._continues = True
        super().set_continue()

    def set_quit(self) -> None:
        self._continues = True
        super().set_quit()

    def _cmdloop(self) -> None:
        # Ctrl-C ends the run. pdb's own loop would catch it, and ask again.
        self.cmdloop()
