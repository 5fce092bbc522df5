"""``TuneConfig(reuse_actors=True)``: an engine whose workers run one trial after the other.

    a trial's run ends      ReusingEngine                        reused_worker.main
    WorkerExited ◀───────── the trial is over ◀──────── Idle ──  the process waits
    WorkerGroup.close ────▶ kept, if it is idle
    Engine.start ─────────▶ one that is idle, if it fits ──────▶ NextTrial, then the payload

A run sees an engine as any other: each trial seems to have a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockstep.engine import Engine, GroupSpec, WorkerGroup
from lockstep.engine.base import EngineEvent, OutputSink, WorkerExited, WorkerMessage
from lockstep.engine.loop import EventLoop
from lockstep.train.protocol import Exit, Lingering
from lockstep.tune.execution.reused_worker import END_OF_OUTPUT, ENTRY, Idle, NextTrial

__all__ = ["ReusingEngine"]

EXIT_S = 60.0
"""How long ``Trainable.cleanup()`` may take in an idle worker."""

OUTPUT_S = 30.0
"""How long the rest of a trial's output may take to be read."""


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
        if spec.size != 1:
            return self._engine.start(spec, loop, emit, output)
        spec = replace(spec, entry=ENTRY)
        kind = replace(spec, payload=b"", title="")
        for worker in self._idle:
            if worker.kind == kind:
                self._idle.remove(worker)
                return worker.run_next(spec, emit, output)
        if self._idle:
            # Of other resources, such as another GPU. The new worker may need its memory.
            self._end(self._idle.pop(0))
        return _Worker(kind, loop, self._engine, self._worker_gone).start(
            spec, emit, output, self._idle.append
        )

    def finish(self, loop: EventLoop) -> None:
        """No trial follows: let the idle workers clean up and exit."""
        while self._idle:
            self._end(self._idle.pop())
        loop.run_until(lambda: not self._ending)

    def close(self) -> None:
        """Kill the workers that are left. The engine below stays as it is. Idempotent."""
        for worker in [*self._idle, *self._ending]:
            worker.group.close()
        self._idle.clear()
        self._ending.clear()

    def _end(self, worker: _Worker) -> None:
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
        self._trial: _Trial | None = None
        self._output = _Output()

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
        if trial.is_over and self._output.wait_for_end():
            self._keep(self)
        else:
            self.group.close()

    def _event(self, event: EngineEvent) -> None:
        trial = self._trial
        if trial is None:
            if isinstance(event, WorkerExited):
                self._gone(self)
        elif isinstance(event, WorkerMessage) and type(event.message) is Idle:
            trial.is_over = True
            trial.emit(WorkerExited(0, 0))
        # Threads of a trainable that is kept may stay.
        elif not (isinstance(event, WorkerMessage) and type(event.message) is Lingering):
            if trial.is_over and isinstance(event, WorkerExited):
                trial.is_over = False  # it died since, so it cannot be kept
            elif not trial.is_over:
                trial.emit(event)


class _Trial(WorkerGroup):
    """A worker, as the run of one trial sees it."""

    def __init__(self, worker: _Worker, emit: Callable[[EngineEvent], None]) -> None:
        self._worker = worker
        self.emit = emit
        self.is_over = False

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

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sink: OutputSink | None = None
        self._ended = threading.Event()
        self._rest = b""
        """What may be the beginning of a mark."""

    def begin(self, sink: OutputSink) -> None:
        """What comes now is of another trial."""
        with self._lock:
            self._sink = sink
            self._ended.clear()

    def wait_for_end(self) -> bool:
        """Wait until all output of the trial is read; False: that takes too long."""
        return self._ended.wait(OUTPUT_S)

    def write(self, rank: int, data: bytes) -> None:
        with self._lock:
            data = self._rest + data
            if END_OF_OUTPUT in data:
                before, _, data = data.partition(END_OF_OUTPUT)
                self._pass(before)
                sink, self._sink = self._sink, None
                if sink is not None:
                    sink.close()
                self._ended.set()
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
