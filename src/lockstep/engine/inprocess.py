"""The engine for ``num_workers=0``: the function runs in this process, on the driver's thread.

The function runs inside a callback of the loop. Every message it sends is handled before ``send``
returns, and ``receive`` runs the loop until an answer is there. So there is no second thread, and
``breakpoint()`` stops everything.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
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
from lockstep.engine.processes import current_directory
from lockstep.engine.resources import check_fits, shared_resources
from lockstep.engine.usage import sample_workers
from lockstep.errors import InsufficientResourcesError

__all__ = ["InProcessEngine"]


class InProcessEngine(Engine):
    """One worker, this process."""

    name = "inprocess"
    single_machine = True
    in_this_process = True

    def check(self, spec: GroupSpec) -> list[str]:
        """See :class:`Engine`."""
        if spec.size > 1:
            raise InsufficientResourcesError(
                f"the engine 'inprocess' runs one worker, not {spec.size}: use "
                "lockstep.init(engine='local'), or ScalingConfig(num_workers=0)."
            )
        return check_fits(spec)

    def capacity(self, spec: GroupSpec) -> int:
        """See :class:`Engine`."""
        return 1

    def resources(self) -> tuple[float, tuple[str, ...]]:
        """See :class:`Engine`."""
        return shared_resources()

    def watch_capacity(self, loop: EventLoop, changed: Callable[[], None]) -> Callable[[], None]:
        """See :class:`Engine`."""
        return lambda: None

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
        """See :class:`Engine`. Nothing is kept warm."""


class _InProcessGroup(WorkerGroup):
    def __init__(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
    ) -> None:
        self._spec = spec
        self._directory = current_directory()
        self._emit = emit
        self._output = output
        self._closed = False
        self._channel = _LoopChannel(
            loop, lambda message: self._emit_event(WorkerMessage(0, message))
        )
        self._channel.deliver(spec.payload)
        # Not now: start() must return before the first event.
        loop.call_soon(self._run)

    def send(self, rank: int, message: Any) -> None:
        self._channel.deliver(message)

    def interrupt(self) -> None:
        # The loop runs inside the function's report(): that call raises KeyboardInterrupt.
        self._channel.interrupted = True

    def dump_stacks(self, rank: int) -> None:
        """Does nothing: the function runs on the loop's own thread."""

    def sample(self) -> None:
        self._emit_event(sample_workers({0: os.getpid()}))

    def kill(self) -> None:
        """End the function at its next report: this process cannot be killed."""
        self._channel.killed = True

    def abandon(self) -> None:
        """Does nothing: the function runs on the loop's own thread."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.kill()
            self._output.close()

    def _run(self) -> None:
        if self._closed:
            return
        exitcode = 1
        surroundings = _surroundings(self._spec.environment, self._directory)
        with surroundings, _copied_output(self._print), self._channel.interruptible():
            try:
                exitcode = pkgutil.resolve_name(self._spec.entry)(self._channel)
            except KeyboardInterrupt:
                exitcode = 130
            except (Exception, SystemExit):
                traceback.print_exc()
        self._channel.emit_from_threads()
        self._emit_event(WorkerExited(0, -9 if self._channel.killed else exitcode))

    def _emit_event(self, event: EngineEvent) -> None:
        # As with a process: after a kill there is an exit, but no message any more.
        if not self._closed and not (self._channel.killed and isinstance(event, WorkerMessage)):
            self._emit(event)

    def _print(self, data: bytes) -> None:
        if not self._closed:
            self._output.write(0, data)
            self._output.tick()


class _LoopChannel(Channel):
    rank = 0

    def __init__(self, loop: EventLoop, emit: Callable[[Any], None]) -> None:
        self._loop = loop
        self._emit = emit
        self._inbox: deque[Any] = deque()
        self._from_threads: deque[Any] = deque()
        self._thread = threading.get_ident()
        self.interrupted = False
        self.killed = False
        self._driving = False

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C ends the function at once, but never interrupts the driver's own work."""

        def interrupt(signum: int, frame: FrameType | None) -> None:
            if self._driving:
                self.interrupted = True
            else:
                raise KeyboardInterrupt

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def deliver(self, message: Any) -> None:
        self._inbox.append(message)

    def send(self, message: Any) -> None:
        # The driver's code runs on its own thread only; messages of other threads wait for it.
        if threading.get_ident() != self._thread:
            self._from_threads.append(message)
            self._loop.call_soon(self.emit_from_threads)
            return
        self._driving = True
        try:
            self.emit_from_threads()
            self._emit(message)
        finally:
            self._driving = False

    def post(self, item: Any) -> None:
        self.send(Posted([item]))

    def emit_from_threads(self) -> None:
        """Emit the messages of other threads, on the loop's thread."""
        while self._from_threads:
            self._emit(self._from_threads.popleft())

    def receive(self) -> Any:
        while self.killed or self.interrupted or not self._inbox:
            if self.killed or self.interrupted:
                self.interrupted = False
                raise KeyboardInterrupt
            self._driving = True
            try:
                self._loop.run_once()
            finally:
                self._driving = False
        return self._inbox.popleft()


@contextlib.contextmanager
def _surroundings(extra: Mapping[str, str], directory: str) -> Iterator[None]:
    """Add variables; afterwards restore the environment and the directory."""
    before = dict(os.environ)
    os.environ.update(extra)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the function may have removed the directory
            os.chdir(directory)
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _copied_output(copy: Callable[[bytes], None]) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8", errors="replace") as nowhere:
        # A service may have no stdout or stderr. Its output then goes to the log only.
        sys.stdout, sys.stderr = (
            _Tee(nowhere if stream is None else stream, copy) for stream in before
        )
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


class _Tee:
    """A stream whose text also goes to the run's log. All other attributes are the stream's."""

    def __init__(self, stream: TextIO, copy: Callable[[bytes], None]) -> None:
        self._stream = stream
        self._copy = copy

    def write(self, text: str) -> int:
        self._copy(text.encode("utf-8", "replace"))
        return self._stream.write(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
