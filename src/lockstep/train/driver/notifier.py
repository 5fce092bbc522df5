"""Notifies callbacks and the display of what happens in a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lockstep.callback import RunContext, TrialSnapshot, TrialStatus
from lockstep.checkpoint import Checkpoint
from lockstep.console import Display
from lockstep.console.warn_once import WarnOnce
from lockstep.error_record import unpack_error
from lockstep.train.driver.best import Best, BestSoFar
from lockstep.train.driver.callbacks import RunListener
from lockstep.train.driver.events import Phase
from lockstep.train.driver.failure import WorkerFailure
from lockstep.train.driver.notes import unknown_keys_note
from lockstep.train.protocol import Report
from lockstep.train.record.run import Run

__all__ = ["RunNotifier"]


class RunNotifier:
    """Notifies a run's callbacks and its display. ``warn_once`` may be called in any thread.

    Reports and checkpoints wait in a queue until ``deliver``: workers get their answers first.
    Everything that is queued carries its own values, because the run may have moved on by then.
    """

    def __init__(
        self,
        run: Run,
        run_context: RunContext,
        callbacks: RunListener,
        display: Display,
        verbose: int,
    ) -> None:
        self._run = run
        self._run_context = run_context
        self._callbacks = callbacks
        self._display = display
        self._verbose = verbose
        self._queue: deque[Callable[[], None]] = deque()
        # True while a report's checkpoint is being published. Callbacks get both together.
        self._held = False
        self._started = False
        self._last_result: dict[str, Any] = {}
        self._newest: Checkpoint | None = None
        self._warnings = WarnOnce(display)
        self._best = BestSoFar(run_context.run_config)

    @property
    def best(self) -> Best | None:
        """The best value so far, in what was delivered."""
        return self._best.best

    def started(self, newest: Checkpoint | None) -> None:
        """An attempt's function is about to run; ``newest``: the run's own newest checkpoint."""
        if self._started:
            return
        self._started = True
        self._last_result = self._run.first_result()
        self._newest = newest
        self._callbacks.start(self._snapshot("RUNNING"), self._run_context, self._run.restored)

    def reported(
        self, reports: Sequence[Report], checkpoint: str | None, row: dict[str, Any]
    ) -> None:
        """A report is recorded, with a checkpoint of this name or none."""
        run = self._run
        # Callbacks see the row before this one in ``trial.last_result``.
        trial = self._snapshot("RUNNING")
        self._last_result = row
        # Copied now: more rows may be recorded before the queue is delivered.
        numbers = run.iteration, run.rows
        self._queue.append(
            partial(self._report, numbers, trial, row, run.last_metrics, reports, checkpoint)
        )

    def logged(self, rank: int, rows: list[str]) -> None:
        """A rank has called ``train.log()``; the rows are JSON."""
        self._callbacks.log(self._run.trial_id, rank, rows)

    def committed(self, checkpoint: Checkpoint) -> None:
        """A checkpoint exists."""
        self._newest = checkpoint
        trial, iteration = self._snapshot("RUNNING"), self._run.iteration
        self._queue.append(partial(self._callbacks.checkpoint, iteration, trial, checkpoint))

    def failed(self, failures: Sequence[WorkerFailure], *, retry: bool) -> None:
        """An attempt failed; with ``retry`` another follows."""
        if self._started:
            errors = {failure.rank: unpack_error(failure.error) for failure in failures}
            self._callbacks.failure(
                self._run_context,
                {rank: error for rank, error in errors.items() if isinstance(error, Exception)},
            )
            if retry:
                self._callbacks.recover(self._run.iteration, self._snapshot("RUNNING"))

    def ended(self, phase: Phase) -> None:
        """The run is over."""
        self.release()
        self.deliver()
        # Callbacks hear of the end of a run only if they heard of its start.
        if self._started:
            failed = phase is Phase.FAILED
            stopped = phase in (Phase.INTERRUPTED, Phase.PREEMPTED)
            trial = replace(self._snapshot("ERROR" if failed else "TERMINATED"), stopped=stopped)
            self._callbacks.end(self._run.iteration, trial, failed)

    def hold(self) -> None:
        """Keep what is queued until ``release``: a report's checkpoint is about to exist."""
        self._held = True

    def release(self) -> None:
        """Let ``deliver`` notify again."""
        self._held = False

    def deliver(self) -> None:
        """Notify of what is queued."""
        while self._queue and not self._held:
            self._queue.popleft()()

    def warn_once(self, kind: str, text: str) -> None:
        """Show a warning the first time that there is one of this kind."""
        self._warnings(kind, text)

    def has_warned(self, kind: str) -> bool:
        """Whether there was a warning of this kind."""
        return kind in self._warnings

    def _report(
        self,
        numbers: tuple[int, int],
        trial: TrialSnapshot,
        row: dict[str, Any],
        metrics: dict[str, Any],
        reports: Sequence[Report],
        checkpoint: str | None,
    ) -> None:
        iteration, rows = numbers
        self._best.update(rows, metrics)
        self._run.best = self._best.best
        opened = None
        if checkpoint is not None:
            opened = self._run.open_reported(reports, checkpoint)
            # The report waited for its checkpoint, which is the newest one by now.
            trial = replace(trial, checkpoint=self._newest)
        ranks = [report.metrics or {} for report in reports]
        self._callbacks.report(iteration, trial, row, ranks, opened)
        if reports[0].reduce is not None and not self.has_warned("reduce"):
            note = unknown_keys_note(reports)
            if note is not None:
                self.warn_once("reduce", note)
        if self._verbose == 2:
            self._display.report(rows, metrics)

    def _snapshot(self, status: TrialStatus) -> TrialSnapshot:
        run = self._run
        return TrialSnapshot(
            trial_id=run.trial_id,
            trainable_name=run.trainer_name,
            path=run.directory,
            experiment_name=run.experiment_name,
            experiment_tag=run.header["experiment_tag"],
            config=run.header["config"],
            last_result=self._last_result,
            status=status,
            checkpoint=self._newest,
            restored=run.restored,
        )
