"""``TuneConfig(reuse_actors=True)``: an engine whose workers run one trial after the other.

    a trial's run ends      ReusingEngine                        reused_worker.main
    WorkerExited ◀───────── the trial is over ◀──────── Idle ──  the process waits
                            when its output is read
    WorkerGroup.close ────▶ kept, if it is idle
    Engine.start ─────────▶ one that is idle, if it fits ──────▶ NextTrial, then the payload

A run sees an engine as any other: each trial seems to have a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockstep.engine import Engine, GroupSpec, WorkerGroup
from lockstep.engine.base import (
    EngineEvent,
    EngineNotice,
    OutputSink,
    WorkerExited,
    WorkerMessage,
    WorkerPreempted,
)
from lockstep.engine.loop import EventLoop, Timer
from lockstep.train.protocol import Exit, Lingering
from lockstep.tune.execution.reused_worker import END_OF_OUTPUT, ENTRY, Idle, NextTrial

__all__ = ["ReusingEngine"]

EXIT_S = 60.0
"""How long ``Trainable.cleanup()`` may take in an idle worker."""

OUTPUT_S = 30.0
"""How long the rest of a trial's output may take to be read. Then its worker is not reused."""


class ReusingEngine(Engine):
    """Keeps the worker of a trial that has ended, for the next one with the same resources.

    Args:
        engine: starts the workers. Groups of several workers are that engine's own.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name
        self.single_machine = engine.single_machine
        self.in_this_process = engine.in_this_process
        self.cluster = engine.cluster
        self.node_memory = engine.node_memory
        self._idle: list[_Worker] = []
        self._ending: set[_Worker] = set()
        self._started: weakref.WeakSet[WorkerGroup] = weakref.WeakSet()

    def check(self, spec: GroupSpec) -> list[str]:
        """See :class:`Engine`."""
        return self._engine.check(spec)

    def capacity(self, spec: GroupSpec) -> int:
        """See :class:`Engine`."""
        return self._engine.capacity(spec)

    def resources(self) -> tuple[float, tuple[str, ...]]:
        """See :class:`Engine`."""
        return self._engine.resources()

    def watch_capacity(self, loop: EventLoop, changed: Callable[[], None]) -> Callable[[], None]:
        """See :class:`Engine`."""
        return self._engine.watch_capacity(loop, changed)

    def start(
        self,
        spec: GroupSpec,
        loop: EventLoop,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
    ) -> WorkerGroup:
        """See :class:`Engine`."""
        kind = replace(spec, entry=ENTRY, payload=b"", title="")
        for worker in self._idle:
            if worker.kind == kind and not worker.is_going:
                self._idle.remove(worker)
                return worker.run_next(spec, emit, output)
        # Of other resources, such as another GPU. The new workers may need those, or the memory.
        self._end_idle()

        def heard(event: EngineEvent) -> None:
            if isinstance(event, EngineNotice):
                self._make_room()
            emit(event)

        if spec.size != 1:
            group = self._engine.start(spec, loop, heard, output)
        else:
            group = _Worker(kind, loop, self._engine, self._worker_gone).start(
                replace(spec, entry=ENTRY), heard, output, self._keep
            )
        self._started.add(group)
        return group

    def finish(self, loop: EventLoop) -> None:
        """No trial follows: let the idle workers clean up and exit."""
        self._end_idle()
        loop.run_until(lambda: not self._ending)

    def close(self) -> None:
        """Kill the workers that are left. The engine below stays as it is. Idempotent."""
        for worker in [*self._idle, *self._ending]:
            worker.group.close()
        self._idle.clear()
        self._ending.clear()

    def _keep(self, worker: _Worker) -> None:
        self._idle.append(worker)
        self._make_room()

    def _make_room(self) -> None:
        """On a cluster: what a group waits for may be what idle workers have."""
        if any(group.waits_for_room for group in self._started):
            self._end_idle()

    def _end_idle(self) -> None:
        while self._idle:
            worker = self._idle.pop()
            self._ending.add(worker)
            worker.end()

    def _worker_gone(self, worker: _Worker) -> None:
        """A worker without a trial has ended: as it was told, or killed by somebody."""
        worker.group.close()
        self._ending.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)


class _Worker:
    """A process, and the trial it runs, if it does."""

    group: WorkerGroup

    def __init__(
        self,
        kind: GroupSpec,
        loop: EventLoop,
        engine: Engine,
        gone: Callable[[_Worker], None],
    ) -> None:
        self.kind = kind
        self._loop = loop
        self._engine = engine
        self._gone = gone
        self.is_going = False
        """Its machine was told to end soon."""
        self._trial: _Trial | None = None
        self._output = _Output(lambda: loop.call_soon(self._end_if_read))

    def start(
        self,
        spec: GroupSpec,
        emit: Callable[[EngineEvent], None],
        output: OutputSink,
        keep: Callable[[_Worker], None],
    ) -> WorkerGroup:
        self._keep = keep
        self._trial = trial = _Trial(self, emit)
        self._output.begin(output)
        self.group = self._engine.start(spec, self._loop, self._event, self._output)
        return trial

    def run_next(
        self, spec: GroupSpec, emit: Callable[[EngineEvent], None], output: OutputSink
    ) -> WorkerGroup:
        self._trial = trial = _Trial(self, emit)
        self._output.begin(output)
        self.group.send(0, NextTrial(f"{spec.title}: rank 0 of 1 (lockstep worker)"))
        self.group.send(0, spec.payload)
        return trial

    def end(self) -> None:
        """Let an idle worker exit; kill it if that takes too long."""
        self.group.send(0, Exit())
        late = self._loop.call_later(EXIT_S, self.group.kill)
        gone, self._gone = self._gone, lambda _: None

        def ended(worker: _Worker) -> None:
            late.cancel()
            gone(worker)

        self._gone = ended

    def release(self, trial: _Trial) -> None:
        """The run of a trial is over: keep the worker if it can run another."""
        if trial is not self._trial:
            return
        self._trial = None
        trial.stop_waiting()
        if trial.is_over and trial.is_idle:
            self._keep(self)
        else:
            self.group.close()

    def _event(self, event: EngineEvent) -> None:
        trial = self._trial
        if isinstance(event, WorkerPreempted):
            self.is_going = True
        if trial is None:
            if isinstance(event, WorkerExited):
                self._gone(self)
        elif isinstance(event, WorkerMessage) and type(event.message) is Idle:
            trial.is_idle = True
            trial.late = self._loop.call_later(OUTPUT_S, self._end_unread)
            self._end_if_read()
        # Threads of a trainable that is kept may stay.
        elif not (isinstance(event, WorkerMessage) and type(event.message) is Lingering):
            if isinstance(event, WorkerExited):
                trial.is_idle = False  # it died since, so it cannot be kept
            if not trial.is_over:
                trial.emit(event)

    def _end_if_read(self) -> None:
        """A trial is over when its worker is idle and its output is read, whichever is last."""
        trial = self._trial
        if trial is not None and trial.is_idle and not trial.is_over and self._output.has_ended:
            trial.is_over = True
            trial.stop_waiting()
            trial.emit(WorkerExited(0, 0))

    def _end_unread(self) -> None:
        """The rest of the output does not come: the worker's own end will be the trial's."""
        if self._trial is not None:
            self._trial.is_idle = False
            self.group.send(0, Exit())


class _Trial(WorkerGroup):
    """A worker, as the run of one trial sees it."""

    def __init__(self, worker: _Worker, emit: Callable[[EngineEvent], None]) -> None:
        self._worker = worker
        self.emit = emit
        self.is_idle = False
        """The worker can run another trial."""
        self.is_over = False
        """The run was told that its worker has ended; the process may wait for another trial."""
        self.late: Timer | None = None

    def stop_waiting(self) -> None:
        if self.late is not None:
            self.late.cancel()

    def send(self, rank: int, message: Any) -> None:
        self._worker.group.send(rank, message)

    def interrupt(self) -> None:
        self._worker.group.interrupt()

    def dump_stacks(self, rank: int) -> None:
        self._worker.group.dump_stacks(rank)

    def sample(self) -> None:
        self._worker.group.sample()

    def problem(self, rank: int) -> str:
        return self._worker.group.problem(rank)

    @property
    def waits_for_room(self) -> bool:
        return self._worker.group.waits_for_room

    def kill(self) -> None:
        self._worker.group.kill()

    def abandon(self) -> None:
        self._worker.group.abandon()

    def close(self) -> None:
        self._worker.release(self)


class _Output(OutputSink):
    """Divides what a process prints among its trials, at the ends that the process marks."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._sink: OutputSink | None = None
        self._ended = ended
        self.has_ended = False
        """All output of the trial is read."""
        self._rest = b""
        """What may be the beginning of a mark."""

    def begin(self, sink: OutputSink) -> None:
        """What comes now is of another trial."""
        with self._lock:
            self._sink = sink
            self.has_ended = False

    def write(self, rank: int, data: bytes) -> None:
        with self._lock:
            data = self._rest + data
            if END_OF_OUTPUT in data:
                before, _, data = data.partition(END_OF_OUTPUT)
                self._pass(before)
                sink, self._sink = self._sink, None
                if sink is not None:
                    sink.close()
                self.has_ended = True
                self._ended()
            held = _beginning_of_mark(data)
            self._rest = data[len(data) - held :]
            self._pass(data[: len(data) - held])

    def tick(self) -> float | None:
        with self._lock:
            return None if self._sink is None else self._sink.tick()

    def close(self) -> None:
        with self._lock:
            self._pass(self._rest)
            self._rest = b""
            sink, self._sink = self._sink, None
            if sink is not None:
                sink.close()

    def _pass(self, data: bytes) -> None:
        if not data:
            return
        if self._sink is not None:
            self._sink.write(0, data)
        else:
            # Printed between trials, by cleanup() or a thread: no log is open for it.
            with contextlib.suppress(OSError):
                os.write(2, data)


def _beginning_of_mark(data: bytes) -> int:
    """How many bytes at the end may be the beginning of a mark."""
    longest = min(len(END_OF_OUTPUT) - 1, len(data))
    return next((n for n in range(longest, 0, -1) if data.endswith(END_OF_OUTPUT[:n])), 0)
