"""What workers print: a file for each rank, and the driver's terminal."""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import BinaryIO

from lockstep.console import Display
from lockstep.console.logs import Line, LineCollapser, LineSplitter

__all__ = ["LOG_DIRECTORY", "OutputRouter", "log_file"]

LOG_DIRECTORY = "logs"


def log_file(rank: int) -> str:
    """A rank's log, relative to the run's directory."""
    return f"{LOG_DIRECTORY}/rank_{rank}.log"


class OutputRouter:
    """An ``OutputSink``. ``display`` None: only to the files (the terminal shows it already)."""

    def __init__(self, directory: str, world_size: int, display: Display | None) -> None:
        os.makedirs(os.path.join(directory, LOG_DIRECTORY), exist_ok=True)
        self._world_size = world_size
        self._display = display
        # Unbuffered: the last lines before a crash are the ones that matter.
        self._files: list[BinaryIO] = [
            open(os.path.join(directory, log_file(rank)), "ab", buffering=0)  # noqa: SIM115
            for rank in range(world_size)
        ]
        self._splitters = [LineSplitter() for _ in range(world_size)]
        self._collapser = LineCollapser(world_size)

    def write(self, rank: int, data: bytes) -> None:
        """See :class:`lockstep.engine.OutputSink`."""
        # A full disk must not stop the terminal; storage errors show where they matter.
        with contextlib.suppress(OSError):
            self._files[rank].write(data)
        if self._display is not None:
            now = time.monotonic()
            for line in self._splitters[rank].feed(data):
                self._show(self._collapser.feed(rank, line, now))

    def tick(self) -> float | None:
        """See :class:`lockstep.engine.OutputSink`."""
        if self._display is None:
            return None
        now = time.monotonic()
        self._show(self._collapser.flush(now))
        deadline = self._collapser.deadline()
        return None if deadline is None else max(0.0, deadline - now)

    def close(self) -> None:
        """See :class:`lockstep.engine.OutputSink`. Idempotent."""
        for rank, splitter in enumerate(self._splitters):
            for line in splitter.close():
                self._show(self._collapser.feed(rank, line, time.monotonic()))
        self._show(self._collapser.flush(math.inf))
        for file in self._files:
            file.close()

    def _show(self, lines: list[Line]) -> None:
        if self._display is not None:
            for line in lines:
                self._display.output(line.ranks, self._world_size, line.text)
