"""What workers print: a file for each rank, and the driver's terminal."""

from __future__ import annotations

import contextlib
import linecache
import math
import os
import time
from collections.abc import Callable
from typing import BinaryIO

from lockstep.console import Display
from lockstep.console.logs import Line, LineCollapser, LineSplitter
from lockstep.console.stacks import StackCollector

__all__ = ["LOG_DIRECTORY", "OutputRouter", "log_file"]

LOG_DIRECTORY = "logs"


def log_file(rank: int) -> str:
    """A rank's log, relative to the run's directory."""
    return f"{LOG_DIRECTORY}/rank_{rank}.log"


class OutputRouter:
    """An ``OutputSink``. ``display`` None: only to the files (the terminal shows it already).

    The stacks of a worker go to its file as they come and to the display in a tidy form. A line
    that takes long to end (a progress bar) is shown as it stands every ten seconds, in a long run
    every minute, if it has changed.
    """

    def __init__(
        self,
        directory: str,
        world_size: int,
        display: Display | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        os.makedirs(os.path.join(directory, LOG_DIRECTORY), exist_ok=True)
        self._world_size = world_size
        self._display = display
        # Unbuffered: the last lines before a crash are the ones that matter.
        self._files: list[BinaryIO] = [
            open(os.path.join(directory, log_file(rank)), "ab", buffering=0)  # noqa: SIM115
            for rank in range(world_size)
        ]
        self._splitters = [LineSplitter() for _ in range(world_size)]
        self._stacks = [StackCollector(linecache.getline) for _ in range(world_size)]
        self._collapser = LineCollapser(world_size)
        self._clock = clock
        self._began = clock()
        self._unfinished = [""] * world_size  # as it was shown last
        self._look_at: float | None = None

    def write(self, rank: int, data: bytes) -> None:
        """See :class:`lockstep.engine.OutputSink`."""
        # A full disk must not stop the terminal; storage errors show where they matter.
        with contextlib.suppress(OSError):
            self._files[rank].write(data)
        if self._display is not None:
            now = self._clock()
            for line in self._splitters[rank].feed(data):
                self._pass_on(rank, self._stacks[rank].feed(line, now), now)
            if self._look_at is None and not data.endswith(b"\n"):
                self._look_at = now + self._patience(now)

    def tick(self) -> float | None:
        """See :class:`lockstep.engine.OutputSink`."""
        if self._display is None:
            return None
        now = self._clock()
        if self._look_at is not None and self._look_at <= now:
            self._show_unfinished(now)
        for rank, stacks in enumerate(self._stacks):
            if (late := stacks.deadline()) is not None and late <= now:
                self._pass_on(rank, stacks.flush(), now)
        self._show(self._collapser.flush(now))
        waiting = [
            self._look_at,
            self._collapser.deadline(),
            *(stacks.deadline() for stacks in self._stacks),
        ]
        deadlines = [deadline for deadline in waiting if deadline is not None]
        return max(0.0, min(deadlines) - now) if deadlines else None

    def close(self) -> None:
        """See :class:`lockstep.engine.OutputSink`. Idempotent."""
        now = self._clock()
        for rank, splitter in enumerate(self._splitters):
            for line in splitter.close():
                self._pass_on(rank, self._stacks[rank].feed(line, now), now)
            self._pass_on(rank, self._stacks[rank].flush(), now)
        self._show(self._collapser.flush(math.inf))
        for file in self._files:
            file.close()

    def _patience(self, now: float) -> float:
        return min(max((now - self._began) / 10, 10.0), 60.0)

    def _show_unfinished(self, now: float) -> None:
        self._look_at = None  # until more of it comes
        for rank, splitter in enumerate(self._splitters):
            line = splitter.unfinished()
            if not line or line == self._unfinished[rank] or self._stacks[rank].deadline():
                continue
            self._unfinished[rank] = line
            self._look_at = now + self._patience(now)
            self._show(self._collapser.feed(rank, line, now))

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
