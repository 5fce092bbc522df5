"""Delivers the events of a run, or of all trials, to callbacks, each from a thread of its own.

The hooks themselves are in ``lockstep.callback``. One callback that raises, stalls or floods its
queue costs neither the run nor the other callbacks anything.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from lockstep.callback import Callback, RunContext, TrialSnapshot, UserCallback
from lockstep.train.driver.callback_lane import CallbackLane, LaneBarrier

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint
    from lockstep.config import StopCondition

__all__ = ["CallbackDispatcher", "RunListener"]


class RunListener(Protocol):
    """What a controller notifies of, in this order; see ``CallbackDispatcher``."""

    def start(self, trial: TrialSnapshot, run_context: RunContext, restored: bool = False) -> None:
        """The run's function is about to be called."""

    def report(
        self,
        iteration: int,
        trial: TrialSnapshot,
        result: dict[str, Any],
        metrics_by_rank: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """A report is recorded and answered."""

    def log(self, trial_id: str, rank: int, rows: list[str]) -> None:
        """A rank has called ``train.log()``; the rows are JSON."""

    def checkpoint(self, iteration: int, trial: TrialSnapshot, checkpoint: Checkpoint) -> None:
        """A checkpoint is committed."""

    def failure(self, run_context: RunContext, errors: dict[int, Exception]) -> None:
        """An attempt failed."""

    def recover(self, iteration: int, trial: TrialSnapshot) -> None:
        """The attempt that failed is followed by another."""

    def end(self, iteration: int, trial: TrialSnapshot, failed: bool) -> None:
        """The run is over."""


class CallbackDispatcher:
    """The callbacks of one run, or with ``trials`` of an experiment's.

    ``start`` first and ``end`` for each trial, ``close`` last; an experiment calls ``begin`` before
    and ``finish`` after its trials. All calls from one thread, and all but ``close`` return at
    once. The values handed in must not be changed afterwards, except ``result``.

    Args:
        callbacks: ``Callback`` and ``UserCallback`` objects, mixed. An object listed twice is
            called once.
        on_problem: called with one sentence about what went wrong, from any thread.
        flush_s: how long ``close`` waits for those with no time of their own, in all.
        trials: every trial of the experiment, as it grows; None: there is only the one run. Read
            by the callbacks, in their threads.
        states: the directory where an experiment keeps what ``get_state`` gives; a run keeps it
            in its own.

    Raises:
        TypeError: an entry is not a callback.
        Exception: what a callback's ``check_before_run`` raises.
    """

    def __init__(
        self,
        callbacks: Sequence[object],
        on_problem: Callable[[str], None],
        flush_s: float,
        trials: Sequence[TrialSnapshot] | None = None,
        states: str | None = None,
    ) -> None:
        for callback in callbacks:
            _check(callback)
        unique = {id(callback): callback for callback in callbacks}
        self._on_problem = on_problem
        self._flush_s = flush_s
        self._alone = trials is None
        seen: Counter[type] = Counter()
        self._lanes = []
        for callback in unique.values():
            self._lanes.append(
                CallbackLane(callback, on_problem, trials, states, seen[type(callback)])
            )
            seen[type(callback)] += 1
        self._trial_lanes = [lane for lane in self._lanes if isinstance(lane.callback, Callback)]
        self._user_lanes = [lane for lane in self._lanes if isinstance(lane.callback, UserCallback)]
        self._log_lanes = [lane for lane in self._lanes if lane.takes_logs]
        self._contexts: dict[str, RunContext] = {}
        self._closed = False

    def begin(self, stop: StopCondition | None, num_samples: int) -> None:
        """``setup``; then ``set_state`` if it is an experiment that has kept something."""
        for lane in self._lanes:
            lane.put((CallbackLane.begun, stop, num_samples))
            lane.thread.start()

    def start(self, trial: TrialSnapshot, run_context: RunContext, restored: bool = False) -> None:
        """``on_trial_start``, ``on_trial_restore`` if it was; before them ``begin`` if alone."""
        if self._alone:
            self.begin(run_context.run_config.stop, 1)
        self._contexts[trial.trial_id] = run_context
        for lane in self._trial_lanes:
            lane.put((CallbackLane.started, trial, restored and trial.checkpoint is not None))

    def report(
        self,
        iteration: int,
        trial: TrialSnapshot,
        result: dict[str, Any],
        metrics_by_rank: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """``on_trial_result`` and ``after_report``."""
        context = self._contexts.get(trial.trial_id)
        values = (iteration, trial, dict(result), metrics_by_rank, checkpoint)
        event = (CallbackLane.reported, context, *values)
        for lane in self._lanes:
            lane.offer(event)

    def log(self, trial_id: str, rank: int, rows: list[str]) -> None:
        """``log_trial_rows`` of the trackers."""
        for lane in self._log_lanes:
            lane.offer_logs(trial_id, rank, rows)

    def checkpoint(self, iteration: int, trial: TrialSnapshot, checkpoint: Checkpoint) -> None:
        """``on_trial_save``, then ``on_checkpoint``."""
        for lane in self._trial_lanes:
            lane.put((CallbackLane.saved, iteration, trial, checkpoint))

    def failure(self, run_context: RunContext, errors: dict[int, Exception]) -> None:
        """``after_exception``."""
        for lane in self._user_lanes:
            lane.put((CallbackLane.failed, run_context, errors))

    def recover(self, iteration: int, trial: TrialSnapshot) -> None:
        """``on_trial_recover``."""
        for lane in self._trial_lanes:
            lane.put((CallbackLane.recovered, iteration, trial))

    def end(self, iteration: int, trial: TrialSnapshot, failed: bool) -> None:
        """``on_trial_complete`` or ``on_trial_error``; then ``finish`` if alone."""
        self._contexts.pop(trial.trial_id, None)
        for lane in self._trial_lanes:
            lane.put((CallbackLane.ended, iteration, trial, failed))
        if self._alone:
            self.finish([trial])

    def finish(self, trials: Sequence[TrialSnapshot]) -> None:
        """``on_experiment_end``."""
        for lane in self._trial_lanes:
            lane.put((CallbackLane.finished, trials))

    def after_files(self, done: Callable[[], None]) -> None:
        """Call ``done``, in another thread, when those that use a run's directory are up to date.

        The run's own files hold everything so far then. Other callbacks have ``flush_s`` for that;
        one that needed longer is not waited for again before it has caught up.
        """
        users = [lane for lane in self._lanes if lane.uses_directory and lane.thread.is_alive()]
        waiting = [lane for lane in users if not lane.is_late]
        patience = LaneBarrier(waiting, done)
        if not all(lane.is_file for lane in waiting):
            patience.limit(self._flush_s)
        for lane in users:
            lane.ask(patience.arrived)
        if not waiting:
            done()

    def close(self) -> None:
        """Waits up to ``flush_s`` for what is queued, names the callbacks that are not done.

        A callback that is not done gets no further events: its thread ends when the hook it is
        in returns.
        """
        if self._closed:
            return
        self._closed = True
        lanes = [lane for lane in self._lanes if lane.thread.ident is not None]
        now = time.monotonic()
        for lane in lanes:
            lane.finish()
        try:
            for lane in lanes:
                wait_s = self._flush_s if lane.end_timeout_s is None else lane.end_timeout_s
                while lane.thread.is_alive() and (left_s := now + wait_s - time.monotonic()) > 0:
                    # In slices: a signal that another thread got does not wake this one.
                    lane.thread.join(min(left_s, 0.1))
        finally:
            late = [lane for lane in lanes if lane.thread.is_alive()]
            for lane in lanes:
                lane.hooks.abandon()
            kept = [lane.abandon() for lane in late]
        own = [lane for lane in late if lane.end_timeout_s is not None]
        for lane in own:
            self._on_problem(
                f"{lane.name} was not finished {lane.end_timeout_s:g} s after the run ended, the "
                "time it was given, so its last events may be missing."
            )
        if late != own:
            names = ", ".join(lane.name for lane in late if lane not in own)
            self._on_problem(
                f"Not finished {self._flush_s:g} s after the run ended, so their last events may "
                f"be missing: {names}; set LOCKSTEP_CALLBACK_FLUSH_S to wait longer."
            )
        for text in filter(None, kept):
            self._on_problem(text)


def _check(callback: object) -> None:
    if isinstance(callback, (Callback, UserCallback)):
        # A user's callback may have one, too (docs/tracking/your-own.md).
        check_before_run = getattr(callback, "check_before_run", None)
        if check_before_run is not None:
            check_before_run()
        return
    if isinstance(callback, type) and issubclass(callback, (Callback, UserCallback)):
        name = callback.__name__
        raise TypeError(f"RunConfig(callbacks=[{name}]): this is the class; give {name}(…).")
    raise TypeError(
        f"RunConfig(callbacks=[{callback!r}]): expected objects of lockstep.tune.Callback, "
        "lockstep.tune.logger.LoggerCallback or lockstep.train.UserCallback."
    )
