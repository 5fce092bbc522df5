"""What workers print: a file for each rank, and the driver's terminal."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from typing import BinaryIO

from lockstep.console import Display
from lockstep.console.logs import Line, LineCollapser, LineSplitter
from lockstep.console.source_lines import source_line
from lockstep.console.stacks import StackCollector, first_dump, parse_stacks, tidy_stacks
from lockstep.console.text import shorten, without_controls
from lockstep.run_layout import LOG_DIRECTORY, log_file
from lockstep.storage.local import open_private

__all__ = ["OutputRouter", "log_end"]

_OPEN_LOGS = 256
"""How many ranks' files stay open: those of the lowest ranks."""
_TOGETHER_S = 1.0
"""Lines that are due so soon are shown with the one that is: alike on all ranks, they are one."""


# An error shows the end of a log, which may have gigabytes.
_TAIL_BYTES = 1 << 16
_TAIL_WIDTH = 400
_TAIL_LINES = 10
_STACK_LINES = 40
_CRASH = "Fatal Python error: "
_STACK = "Stack (most recent call first):"
_THREAD = "Current thread 0x0 (most recent call first):"


def log_end(directory: str, rank: int) -> tuple[list[str], list[str]]:
    """The last lines that a rank printed, and its stack if its process crashed after them.

    Of a progress bar it is what it showed last. The stack is what faulthandler has written: tidied,
    without lines of source.
    """
    printed = _last_printed(directory, rank)
    crashes = [number for number, line in enumerate(printed) if line.startswith(_CRASH)]
    if not crashes:
        return _shown(printed)[-_TAIL_LINES:], []
    # Of the thread that crashed alone, faulthandler does not say which it is.
    dump = first_dump([_THREAD if line == _STACK else line for line in printed[crashes[-1] :]])
    stack = _shown(tidy_stacks(parse_stacks(dump)))
    if len(stack) > _STACK_LINES:
        stack[1 : 1 - _STACK_LINES] = ["  …"]
    return _shown(printed[: crashes[-1]])[-_TAIL_LINES:], stack


def _shown(lines: list[str]) -> list[str]:
    return [shorten(without_controls(line), _TAIL_WIDTH) for line in lines if line.strip()]


def _last_printed(directory: str, rank: int) -> list[str]:
    try:
        with open(os.path.join(directory, log_file(rank)), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    if size > _TAIL_BYTES and b"\n" in data:
        data = data.partition(b"\n")[2]  # the first line is cut
    splitter = LineSplitter()
    return [*splitter.feed(data), *splitter.close()]


class OutputRouter:
    """An ``OutputSink``. ``display`` None: only to the files (the terminal shows it already).

    Stacks that the driver has requested go to the worker's file as they come and to the display in
    a tidy form. A line that takes long to end (a progress bar) is shown as it stands every ten
    seconds, in a long run every minute, if it has changed, and at its end only if it has changed
    since.

    Args:
        directory: the run's.
        world_size: how many ranks there are.
        display: shows what they print.
        clock: returns the time in seconds.
        create: create files now, those of the first 256 ranks; else when a rank first prints.
    """

    def __init__(
        self,
        directory: str,
        world_size: int,
        display: Display | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        create: bool = True,
    ) -> None:
        self._directory = directory
        self._world_size = world_size
        self._display = display
        # Of thousands of ranks, the others get theirs when they print.
        ranks = range(min(world_size, _OPEN_LOGS) if create else 0)
        self._files = {rank: self._open(rank) for rank in ranks}
        self._splitters = [LineSplitter() for _ in range(world_size)]
        self._stacks = [StackCollector(source_line) for _ in range(world_size)]
        self._collapser = LineCollapser(world_size)
        self._clock = clock
        self._began = clock()
        self._unfinished: list[str | None] = [None] * world_size  # the line as it was shown last
        self._due = [math.inf] * world_size  # when to show a line that has not ended
        # No line and no stack is due before. Each rank prints, so none may look at all of them.
        self._next = math.inf

    def expect_stacks(self, rank: int) -> None:
        """The driver has requested this rank's stacks. May be called in any thread."""
        self._stacks[rank].expect()

    def write(self, rank: int, data: bytes) -> None:
        """See :class:`lockstep.engine.OutputSink`."""
        # A full disk must not stop the terminal; storage errors show where they matter.
        with contextlib.suppress(OSError):
            self._keep(rank, data)
        if self._display is not None:
            now = self._clock()
            self._take(rank, self._splitters[rank].feed(data), now)
            if self._due[rank] == math.inf and not data.endswith(b"\n"):
                self._due[rank] = now + self._patience(now)
                self._next = min(self._next, self._due[rank])

    def tick(self) -> float | None:
        """See :class:`lockstep.engine.OutputSink`."""
        if self._display is None:
            return None
        now = self._clock()
        if self._next <= now:
            self._show_due(now)
        self._show(self._collapser.flush(now))
        waits_until = self._collapser.deadline()
        deadline = self._next if waits_until is None else min(self._next, waits_until)
        return max(0.0, deadline - now) if deadline < math.inf else None

    def close(self) -> None:
        """See :class:`lockstep.engine.OutputSink`. Idempotent."""
        now = self._clock()
        for rank, splitter in enumerate(self._splitters):
            self._take(rank, splitter.close(), now)
            self._pass_on(rank, self._stacks[rank].flush(), now)
        self._show(self._collapser.flush(math.inf))
        for file in self._files.values():
            file.close()

    def _keep(self, rank: int, data: bytes) -> None:
        if rank < _OPEN_LOGS:
            if rank not in self._files:
                self._files[rank] = self._open(rank)
            self._files[rank].write(data)
        else:
            # Closed again: a driver may not have thousands of open files besides its connections.
            with self._open(rank) as file:
                file.write(data)

    def _open(self, rank: int) -> BinaryIO:
        os.makedirs(os.path.join(self._directory, LOG_DIRECTORY), exist_ok=True)
        path = os.path.join(self._directory, log_file(rank))
        # Unbuffered: the last lines before a crash are the ones that matter.
        return open(path, "ab", buffering=0, opener=open_private)

    def _show_due(self, now: float) -> None:
        """Show what is due of any rank, and note when something will be."""
        for rank, stacks in enumerate(self._stacks):
            if (late := stacks.deadline()) is not None and late <= now:
                self._pass_on(rank, stacks.flush(), now)
        if min(self._due) <= now:
            for rank, due in enumerate(self._due):
                if due <= now + _TOGETHER_S:
                    self._show_unfinished(rank, now)
        held = (stacks.deadline() for stacks in self._stacks)
        self._next = min([*self._due, *(late for late in held if late is not None)])

    def _patience(self, now: float) -> float:
        # Progress bars of a long run are worth a line less often.
        return min(max((now - self._began) / 10, 10.0), 60.0)

    def _show_unfinished(self, rank: int, now: float) -> None:
        self._due[rank] = math.inf  # until more of it comes
        line = self._splitters[rank].unfinished()
        if line and line != self._unfinished[rank]:
            self._unfinished[rank] = line
            self._due[rank] = now + self._patience(now)
            self._show(self._collapser.feed(rank, line, now))

    def _take(self, rank: int, ended: list[str], now: float) -> None:
        for line in ended:
            shown, self._unfinished[rank] = self._unfinished[rank], None
            self._due[rank] = math.inf
            if line != shown:
                stacks = self._stacks[rank]
                self._pass_on(rank, stacks.feed(line, now), now)
                if (late := stacks.deadline()) is not None:
                    self._next = min(self._next, late)

    def _pass_on(self, rank: int, lines: list[str], now: float) -> None:
        if len(lines) == 1:
            self._show(self._collapser.feed(rank, lines[0], now))
        elif lines:  # a stack: in one piece, with no other rank's lines in it
            self._show(self._collapser.flush(math.inf))
            self._show([Line((rank,), line) for line in lines])

    def _show(self, lines: list[Line]) -> None:
        if self._display is not None:
            for line in lines:
                self._display.output(line.ranks, self._world_size, line.text)
