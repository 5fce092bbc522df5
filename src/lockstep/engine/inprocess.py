"""The engine for ``num_workers=0``: the function runs in this very process, on this thread.

The function runs inside a callback of the loop, and every message it sends is handled before
``send`` returns; while it waits for an answer it runs the loop itself. So there is no second
thread, and ``breakpoint()`` stops everything.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from lockstep.engine.base import (
    Channel,
    Engine,
    EngineEvent,
    GroupSpec,
    OutputSink,
    Posted,
    WorkerExited,
    WorkerGroup,
    WorkerMessage,
)
from lockstep.engine.loop import EventLoop
from lockstep.engine.resources import check_fits

__all__ = ["InProcessEngine"]


class InProcessEngine(Engine):
    """One worker, this process."""

    name = "inprocess"
    single_machine = True

    def check(self, spec: GroupSpec) -> list[str]:
        """See :class:`Engine`."""
        return check_fits(spec)

    def start(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
    ) -> WorkerGroup:
        """See :class:`Engine`."""
        return _InProcessGroup(spec, loop, emit, output)

    def close(self) -> None:
        """Nothing is kept warm."""


class _InProcessGroup(WorkerGroup):
    def __init__(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
    ) -> None:
        self._spec = spec
        self._emit = emit
        self._output = output
        self._killed = False
        self._running = False
        self._channel = _LoopChannel(loop, lambda message: emit(WorkerMessage(0, message)))
        self._channel.deliver(spec.payload)
        loop.call_soon(self._run)

    def send(self, rank: int, message: Any) -> None:
        self._channel.deliver(message)

    def interrupt(self) -> None:
        # The loop runs inside the function's report(), so that is where it is raised.
        self._channel.interrupted = True

    def kill(self) -> None:
        """This process cannot be killed: the function ends at its next report."""
        self._killed = True
        self.interrupt()

    def close(self) -> None:
        self._output.close()

    def _run(self) -> None:
        module, _, function = self._spec.entry.partition(":")
        entry = getattr(importlib.import_module(module), function)
        exitcode: int | None = 1
        with _environment(self._spec.environment), _copied_output(self._output):
            try:
                exitcode = entry(self._channel)
            except KeyboardInterrupt:
                exitcode = -2
        self._emit(WorkerExited(0, -9 if self._killed else exitcode))


class _LoopChannel(Channel):
    rank = 0

    def __init__(self, loop: EventLoop, emit: Callable[[Any], None]) -> None:
        self._loop = loop
        self._emit = emit
        self._inbox: deque[Any] = deque()
        self.interrupted = False

    def deliver(self, message: Any) -> None:
        self._inbox.append(message)

    def send(self, message: Any) -> None:
        self._emit(message)

    def post(self, item: Any) -> None:
        self._emit(Posted([item]))

    def receive(self) -> Any:
        while not self._inbox:
            if self.interrupted:
                self.interrupted = False
                raise KeyboardInterrupt
            self._loop.run_once()
        return self._inbox.popleft()


@contextlib.contextmanager
def _environment(extra: Any) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(extra)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _copied_output(sink: OutputSink) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Tee(sys.stdout, sink), _Tee(sys.stderr, sink)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Tee:
    """A stream that also goes to the run's log; the rest (fileno, isatty) is the stream's own."""

    def __init__(self, stream: TextIO, sink: OutputSink) -> None:
        self._stream = stream
        self._sink = sink

    def write(self, text: str) -> int:
        self._sink.write(0, text.encode("utf-8", "replace"))
        return self._stream.write(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
