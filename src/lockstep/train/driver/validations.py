"""Validates checkpoints beside training, one after the other, each in a process of its own."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple

from lockstep.console import Display
from lockstep.console.logs import LineSplitter
from lockstep.console.text import plural
from lockstep.engine import Engine, GroupSpec, WorkerGroup
from lockstep.engine.base import EngineEvent, EngineNotice, WorkerExited, WorkerMessage
from lockstep.engine.loop import EventLoop, Timer
from lockstep.error_record import summarise_error
from lockstep.errors import LockstepError
from lockstep.retention import CheckpointRecord
from lockstep.run_layout import VALIDATION_LOG
from lockstep.storage.local import open_private
from lockstep.train import protocol as m
from lockstep.train.record.run import Run
from lockstep.train.validation import ValidationTaskConfig

__all__ = ["ValidationPlan", "Validations"]


_FAILED = "VALIDATION_FAILED"
EXIT_S = 60.0
"""How long the process of a validation may take to exit after its function has returned."""


class ValidationPlan(NamedTuple):
    """How the checkpoints of a run are validated."""

    engine: Engine
    group: GroupSpec
    """One process, without a payload."""
    function: bytes
    sources: Mapping[str, str]
    task: Callable[[Mapping[str, Any]], ValidationTaskConfig]
    """What a report has requested, with the defaults."""


class _Running(NamedTuple):
    record: CheckpointRecord
    task: ValidationTaskConfig
    started: float


class Validations:
    """The validations of a run. Used from the loop's thread.

    ``done`` is called with the record of each checkpoint whose validation has ended. One whose
    validation was cancelled stays pending: a restored run validates it.
    """

    def __init__(
        self,
        plan: ValidationPlan | None,
        run: Run,
        loop: EventLoop,
        display: Display,
        done: Callable[[CheckpointRecord], None],
        interrupt: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._run = run
        self._loop = loop
        self._display = display
        self._done = done
        self._interrupt = interrupt
        self._queue: deque[CheckpointRecord] = deque()
        self._running: _Running | None = None
        self._group: WorkerGroup | None = None
        self._timer: Timer | None = None
        self._outcome: tuple[str, dict[str, Any], str] | None = None
        """The status, the metrics, and why there are none."""
        self._closed = False
        self._drained: Callable[[], None] | None = None

    @property
    def pending(self) -> int:
        """How many checkpoints are being validated, or will be."""
        return len(self._queue) + (self._running is not None)

    def start(self) -> None:
        """Validate what an earlier driver of the run did not."""
        waiting = [record for record in self._run.checkpoints if record.awaits_validation]
        if waiting and self._plan is None:
            names = ", ".join(record.name for record in waiting)
            self._display.message(
                f"The validation of {names} did not finish before, and the trainer has no "
                "validation_config now: it has failed, and training continues.",
                "warning",
            )
            for record in waiting:  # else they would wait for it for ever, and never be deleted
                why = "the trainer that restored the run has no validation_config."
                self._done(self._run.record_validation(record, _FAILED, {}, why, 0.0))
            return
        self._queue.extend(waiting)
        self._next()

    def add(self, record: CheckpointRecord) -> None:
        """Validate a checkpoint that is committed now."""
        self._queue.append(record)
        self._next()

    def drain(self, then: Callable[[], None]) -> None:
        """Call ``then`` when every validation has ended, on the loop; it does not wait here."""
        if not self.pending or self._closed:
            then()
            return
        self._drained = then
        waits = plural(self.pending, "checkpoint")
        self._display.message(f"Training has ended; waiting for the validation of {waits}.")

    def cancel(self) -> bool:
        """End what is under way and forget what waits; whether there was something."""
        if self._closed or not self.pending:
            return False
        what = plural(self.pending, "checkpoint")
        self.close()
        self._display.message(f"The validation of {what} was cancelled.", "warning")
        if self._drained is not None:
            self._drained()
        return True

    def close(self) -> None:
        """End what is under way. Idempotent."""
        self._closed = True
        self._queue.clear()
        self._end_group()

    def _next(self) -> None:
        if self._closed or self._running is not None:
            return
        if not self._queue:
            if self._drained is not None:
                self._drained()
            return
        plan = self._plan
        assert plan is not None
        record = self._queue.popleft()
        task = plan.task(record.validation or {})
        self._running = _Running(record, task, time.monotonic())
        self._outcome = None
        setup = m.ValidationSetup(
            plan.function, plan.sources, self._run.open_checkpoint(record), task.fn_kwargs or {}
        )
        in_process = plan.engine.in_this_process
        output = _Output(self._run.directory, None if in_process else self._display)
        spec = replace(
            plan.group, payload=pickle.dumps(setup, 5), title=f"{self._run.title} validation"
        )
        try:
            self._group = plan.engine.start(spec, self._loop, self._event, output)
        except LockstepError as error:
            output.close()
            self._outcome = _FAILED, {}, _sentence(str(error))
            self._loop.call_soon(self._conclude)
            return
        if task.timeout_s is not None:
            self._timer = self._loop.call_later(task.timeout_s, self._time_out)

    def _event(self, event: EngineEvent) -> None:
        if isinstance(event, EngineNotice):
            self._display.message(event.text, "warning")
        elif isinstance(event, WorkerMessage):
            if isinstance(event.message, m.Interrupted):
                # Ctrl-C in this process: it is meant for the run, and the validation stays pending.
                self.cancel()
                self._interrupt()
                return
            if isinstance(event.message, m.Validated):
                self._outcome = "VALIDATED", event.message.metrics, ""
            elif isinstance(event.message, m.Failed):
                self._outcome = (
                    _FAILED,
                    {},
                    _sentence(summarise_error(event.message.error)),
                )
            if self._timer is not None:
                self._timer.cancel()
            if self._group is not None:  # its threads may keep it from exiting
                self._timer = self._loop.call_later(EXIT_S, self._group.kill)
        elif isinstance(event, WorkerExited):
            if self._outcome is None:
                detail = event.detail or f"exit code {event.exitcode}"
                self._outcome = _FAILED, {}, f"its process ended ({detail})."
            self._conclude()

    def _time_out(self) -> None:
        if self._running is None or self._group is None:
            return
        seconds = self._running.task.timeout_s
        self._outcome = (
            "VALIDATION_TIMEOUT",
            {},
            f"it took longer than ValidationTaskConfig(timeout_s={seconds:g}).",
        )
        self._group.kill()

    def _conclude(self) -> None:
        running, outcome = self._running, self._outcome
        if running is None or outcome is None:
            return
        self._end_group()
        status, metrics, why = outcome
        took = time.monotonic() - running.started
        record = self._run.record_validation(running.record, status, metrics, why, took)
        if why:
            self._display.message(
                f"The validation of {record.name} failed, and training continues: {why} See "
                f"{VALIDATION_LOG} in the run's directory.",
                "warning",
            )
        self._done(record)
        self._next()

    def _end_group(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        group, self._group, self._running = self._group, None, None
        if group is not None:
            group.close()


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


class _Output:
    """An ``OutputSink``: the run's file for validations, and the display."""

    def __init__(self, directory: str, display: Display | None) -> None:
        self._path = f"{directory}/{VALIDATION_LOG}"
        self._display = display
        self._file: BinaryIO | None = None
        self._lines = LineSplitter()

    def write(self, rank: int, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the validation
            if self._file is None:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                self._file = open(self._path, "ab", buffering=0, opener=open_private)  # noqa: SIM115  # stays open
            self._file.write(data)
        self._show(self._lines.feed(data))

    def tick(self) -> float | None:
        return None

    def close(self) -> None:
        self._show(self._lines.close())
        if self._file is not None:
            self._file.close()
            self._file = None

    def _show(self, lines: list[str]) -> None:
        if self._display is not None:
            for line in lines:
                self._display.labelled("[validation]", line)
