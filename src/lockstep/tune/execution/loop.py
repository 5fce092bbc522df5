"""The loop over trials: which trial runs next, when each of them stops, and its outcome.

    searcher ──suggest──▶ PENDING ──fits──▶ RUNNING ──run ended──▶ TERMINATED | ERROR
                                              │  ▲
                              scheduler PAUSE ▼  │ scheduler chooses the trial
                                             PAUSED

Every trial is a run with its own controller. All controllers share this thread's event loop:

    while trials run, or a run is being finished:
        TrialQueue.suggest          a new trial, when none is pending and there is room
        UserCalls.choose_trial      the scheduler's choice among pending and paused trials
        TuneLoop._start             RunningTrials: an allocation, a run, a controller
        EventLoop.run_once          ─▶ ReportDecision.stops at each report
                                    ─▶ ExperimentEnding: Ctrl-C, SIGTERM, budget, Stopper
        TuneLoop._run_ended         RunFinisher: flush and upload the run in a thread
        TuneLoop._apply_outcome     TERMINATED, ERROR, PAUSED, or PENDING again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from lockstep import settings
from lockstep.config import RunConfig
from lockstep.console import Display
from lockstep.engine.loop import EventLoop
from lockstep.errors import LockstepError
from lockstep.train.driver.callbacks import CallbackDispatcher
from lockstep.train.driver.controller import Controller
from lockstep.train.driver.events import Phase
from lockstep.train.protocol import Stop
from lockstep.train.record.run import Run
from lockstep.tune.execution.ending import ExperimentEnding
from lockstep.tune.execution.finisher import RunFinisher
from lockstep.tune.execution.launch import Launcher
from lockstep.tune.execution.listener import TrialListener
from lockstep.tune.execution.report_decision import ReportDecision
from lockstep.tune.execution.resources import ResourcePool
from lockstep.tune.execution.running_trial import (
    Outcome,
    RunningTrial,
    RunningTrials,
    newest_number,
)
from lockstep.tune.execution.starter import TrialStarter
from lockstep.tune.execution.trial_queue import TrialQueue
from lockstep.tune.execution.user_calls import UserCalls
from lockstep.tune.experiment.experiment import Experiment
from lockstep.tune.experiment.replay import RestoredTrials
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.reporting.notices import Notices
from lockstep.tune.reporting.progress import ExperimentProgress
from lockstep.tune.reporting.trial_display import TrialDisplay
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.search import Searcher
from lockstep.tune.stopper import Stopper
from lockstep.tune.tune_config import TuneConfig

__all__ = ["TuneLoop"]

STOP_ALL_CHECK_S = 0.5
"""How often ``Stopper.stop_all`` is called besides at reports."""


class TuneLoop:
    """Runs trials until there are no more. The ``tune_controller`` that schedulers are given.

    Args:
        constants: merged under each suggestion.
        restored: the trials of a restored experiment; searcher and scheduler know them.

    Attributes:
        ending: why and how the experiment ended early.
        calls: calls user code; has the exception if user code raised.
    """

    def __init__(
        self,
        *,
        loop: EventLoop,
        experiment: Experiment,
        launcher: Launcher,
        searcher: Searcher,
        scheduler: TrialScheduler,
        pool: ResourcePool,
        tune_config: TuneConfig,
        run_config: RunConfig,
        space: Mapping[str, Any],
        constants: Mapping[str, Any],
        total: int | None,
        callbacks: CallbackDispatcher,
        display: Display,
        progress: ExperimentProgress,
        restored: RestoredTrials,
    ) -> None:
        self._loop = loop
        self._experiment = experiment
        self._launcher = launcher
        self._config = tune_config
        self._run_config = run_config
        self._constants = constants
        # What a trial requests may depend on its config.
        self._same_request = not (launcher.over_trainer and "scaling_config" in space)
        self._callbacks = callbacks
        self._display = display
        self._progress = progress
        self._stopped_before_restore = restored.stopped
        # False: nothing has changed since searcher and scheduler had no trial to run. Calling them
        # after each event would cost too much: there may be thousands a second.
        self._look_for_work = True
        self._sync_waits = False
        self._notices = notices = Notices(display)
        limit = tune_config.max_concurrent_trials or None
        self._in_process = launcher.engine.in_this_process
        self._running = RunningTrials(pool, 1 if self._in_process else limit)
        self.ending = ExperimentEnding(loop, self._running, notices)
        self.calls = UserCalls(searcher, scheduler, self, self.ending.abandon)
        self._starter = TrialStarter(
            experiment, launcher, tune_config, space, restored.donor_checkpoints
        )
        self._finisher = RunFinisher(loop, self._starter, callbacks, notices)
        self._decision = ReportDecision(
            self.calls, self.ending, progress, notices, tune_config.metric
        )
        self._queue = TrialQueue(
            experiment, self._starter, self.calls, progress, restored.trials, constants, total
        )
        # Not in the queue's constructor: the scheduler is called, and may ask for the trials.
        self._queue.restore(restored)

    # ---------------------------------------------------------- the scheduler's tune_controller

    def get_trials(self) -> Sequence[Trial]:
        """Every trial so far."""
        return self._queue.trials

    def get_live_trials(self) -> Sequence[Trial]:
        """The trials that are not over, in the order they were added."""
        return list(self._queue.unfinished.values())

    def stop_trial(self, trial: Trial) -> None:
        """End a pending or paused trial at once, a running one at its next report."""
        # A run that is being uploaded has no outcome yet: _apply_outcome looks at `stopped` then.
        running = self._running.get(trial.trial_id) or self._finisher.uploading.get(trial.trial_id)
        if running is not None:
            running.stopped = running.by_scheduler = True
        elif not trial.over:
            self.calls.trial_removed(trial)
            # Callbacks heard of the start of a paused trial, and must hear of its end.
            paused = trial.status == "PAUSED"
            trial.status = "TERMINATED"
            snapshot = trial.snapshot()
            self._trial_over(trial, "TERMINATED", by_scheduler=True)
            if trial.begun:
                self._finisher.finish(trial)
            if paused:
                iteration = int(trial.last_result.get("training_iteration", 0))
                self._callbacks.end(iteration, snapshot, False)

    def exploit(self, trial: Trial, config: Mapping[str, Any], checkpoint: Any) -> bool:
        """Let a trial that is being paused continue with this config, from that checkpoint."""
        source = None
        if checkpoint is not None:
            source = self._starter.source(checkpoint, self._queue.trials)
            directory, _, name = source.partition("/")
            for running in self._running:
                # The name of a checkpoint that was not uploaded may be "./name".
                kept = [record.name.removeprefix("./") for record in running.run.checkpoints]
                if running.trial.directory == directory and kept and name not in kept:
                    source = f"{directory}/{kept[-1]}"  # the donor has just committed another
        self._starter.replace_config(trial, config, source)
        return True

    # ------------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Run everything to its end. On any way out no worker is left."""
        with ExitStack() as cleanup:
            # Undone in reverse: first no worker is left, then the threads finish what was recorded.
            cleanup.callback(self._finisher.shutdown)
            cleanup.callback(self._launcher.close_reused)
            cleanup.callback(self._running.close)
            self._set_timers()
            for trial in self._stopped_before_restore:
                self.stop_trial(trial)
            while self._start_trials():
                self._loop.run_once()
                for running in [each for each in self._running if each.ended]:
                    self._run_ended(running)
            if not self.ending.leave_unfinished:
                self._launcher.finish_reused(self._loop)
                for trial in self.get_live_trials():
                    self.stop_trial(trial)
            self._loop.run_until(lambda: not self._finisher.busy)

    def _set_timers(self) -> None:
        budget: Any = self._config.time_budget_s  # TuneConfig has made a number of it
        if budget is not None:
            stop = self.ending.stop_trials
            self._loop.call_later(budget, lambda: stop("the time budget is used up"))
        if isinstance(self._run_config.stop, Stopper):
            self._check_stopper(self._run_config.stop)
        if not self._experiment.storage.is_local:
            self._sync_regularly()
        self._draw()

    # ------------------------------------------------------------------------ starting trials

    def _start_trials(self) -> bool:
        """Start trials while there are some that fit; whether anything is in progress."""
        if self._look_for_work:
            self._look_for_work = False
            while self.ending.reason is None and not self._running.at_limit:
                trial = self._next_trial()
                if trial is None or not self._start(trial):
                    break
        return bool(self._running or self._finisher.busy)

    def _next_trial(self) -> Trial | None:
        """The trial to run next; a new one if none is pending and the searcher has one."""
        if self._queue.needs_suggestion:
            # Only when there is room: until then more results arrive for the searcher.
            if not self._has_room():
                return None
            self._queue.suggest()
        if self.ending.reason is not None:
            return None
        chosen = self.calls.choose_trial()
        unfinished = self._queue.unfinished
        if chosen is None and unfinished and not self._running and not self._finisher.busy:
            # No event will come that could change the scheduler's mind.
            return next(iter(unfinished.values()))
        return chosen

    def _has_room(self) -> bool:
        if not self._same_request:
            return True
        try:
            request = self._launcher.request(self._constants)
        except Exception:  # with_resources(…, function) that needs a real config
            return True
        return self._running.pool.fits(request)

    def _start(self, trial: Trial) -> bool:
        """Start a trial; False if it does not fit now."""
        pool = self._running.pool
        try:
            prepared = self._launcher.prepare(trial.config)
        except Exception as error:
            self._failed_to_start(trial, None, error)
            return True
        # Before the run is opened: a trial that has to wait leaves no trace.
        allocation = pool.take(prepared.request)
        if allocation is None:
            return False
        if pool.too_large(prepared.request):
            self._notices.too_large(str(prepared.request), pool.cpus, len(pool.gpus))
        run: Run | None = None
        trial.status = "RUNNING"
        try:
            again = trial.begun
            run = self._starter.open_run(trial)
            self._release_donor(trial)
            if again and not run.checkpoints:
                self._notices.starts_over(trial)
            running = RunningTrial(trial, run, allocation, TrialListener(trial, self._callbacks))
            running.resumed_from = newest_number(run) if again else None
            plan, running.payload = self._launcher.plan_run(prepared, run, allocation)
            running.stop_condition = plan.run_config.stop
            plan.engine.check(plan.group)
            running.controller = Controller(
                plan,
                run,
                loop=self._loop,
                callbacks=running.listener,
                display=TrialDisplay(trial, self._display),
                decide=partial(self._reported, running),
                # A flush takes milliseconds, in which no other trial would be answered.
                shares_loop=not self._in_process,
            )
        except Exception as error:
            pool.give_back(allocation)
            self._failed_to_start(trial, run, error)
            return True
        # Before start(): its first events may arrive at once.
        self._running.add(running)
        self._progress.status_changed(trial)
        self._experiment.record_status(trial, directory=trial.directory)
        running.controller.start()
        return True

    def _failed_to_start(self, trial: Trial, run: Run | None, error: Exception) -> None:
        """Record the error in a run all the same, so that the trial is a row in the grid."""
        try:
            self._starter.record_failure(trial, run, error)
        except LockstepError as worse:
            self._notices.problem(trial, str(worse))
        self._trial_failed(trial, f"{type(error).__name__}: {error}")

    def _reported(self, running: RunningTrial, row: dict[str, Any]) -> Stop:
        """Whether a trial stops at this report."""
        stops = self._decision.stops(running, row)
        waiting = len(self._queue.unfinished) > len(self._running)
        if waiting or self._queue.searcher_waits:
            self._look_for_work = True
        return stops

    # -------------------------------------------------------------------------- ending trials

    def _run_ended(self, running: RunningTrial) -> None:
        """Free what a run held, record its end, and apply the trial's outcome."""
        # First: the resources are free as soon as the workers are gone.
        self._running.remove(running)
        self._look_for_work = True
        expected = self.ending.reason or running.stopped or running.pausing
        if running.phase is Phase.INTERRUPTED and not expected:
            if self._in_process:
                self.ending.interrupt()  # Ctrl-C reached the training function itself
            else:
                running.fail_by_interrupt()
        outcome = running.outcome(leave_unfinished=self.ending.leave_unfinished)
        over = outcome in ("TERMINATED", "ERROR")
        if over:
            running.listener.notify_end()
        self._notices.problem(running.trial, running.record_end(outcome))
        if not running.run.storage.is_local:
            self._finisher.upload(running, lambda: self._apply_outcome(running, outcome))
            return
        if over:
            self._finisher.submit(running.flush_and_close)  # flushing would delay other trials
        else:
            # Now: the trial may be chosen, and its run opened, again at once.
            self._notices.problem(running.trial, running.flush_and_close())
        self._apply_outcome(running, outcome)

    def _apply_outcome(self, running: RunningTrial, outcome: Outcome) -> None:
        trial = running.trial
        self._look_for_work = True
        if outcome == "ERROR":
            self._trial_failed(trial, running.why_failed())
        elif outcome == "TERMINATED":
            self.calls.trial_completed(trial)
            self._trial_over(trial, "TERMINATED", by_scheduler=running.by_scheduler)
        else:
            trial.status = "PAUSED" if outcome == "PAUSED" else "PENDING"
            self._experiment.record_status(trial)
            self._progress.status_changed(trial)
            if outcome == "PAUSED" and not running.has_advanced:
                self._notices.makes_no_progress(trial, self.calls.scheduler_name)
            if running.stopped and outcome == "PAUSED":
                self.stop_trial(trial)  # stop_trial() was called during the upload
        self._progress.resources = str(self._running.pool)

    def _trial_failed(self, trial: Trial, text: str) -> None:
        trial.error = text
        self._notices.failed(trial, text)
        self.calls.trial_failed(trial)
        self._trial_over(trial, "ERROR")
        if self._run_config.failure_config.fail_fast:
            self.ending.fail_fast(trial)

    def _trial_over(self, trial: Trial, status: Any, *, by_scheduler: bool = False) -> None:
        self._queue.close(trial, status, by_scheduler=by_scheduler)
        self._release_donor(trial)

    def _release_donor(self, trial: Trial) -> None:
        """The trial has copied, or does not need, the checkpoint that a donor kept for it."""
        directory = (self._starter.release_donor(trial) or "").partition("/")[0]
        for donor in self._queue.trials if directory else ():
            if donor.directory == directory and donor.status == "TERMINATED":
                self._finisher.finish(donor)  # deletes the checkpoints that exceed num_to_keep

    # ---------------------------------------------------------------------------------- timers

    def _check_stopper(self, stopper: Stopper) -> None:
        if self.ending.reason is not None:
            return
        if self.calls.guard("the stop condition", stopper.stop_all):
            self.ending.stop_trials("the stop condition of the experiment is reached")
        else:
            self._loop.call_later(STOP_ALL_CHECK_S, lambda: self._check_stopper(stopper))

    def _sync_regularly(self) -> None:
        def sync() -> None:
            self._sync_waits = False
            try:
                self._experiment.sync()
            except LockstepError as error:
                self._notices.once("sync", f"Could not copy the journal, will try again: {error}")

        if not self._sync_waits:  # storage may be slow
            self._sync_waits = True
            self._finisher.submit(sync)
        self._loop.call_later(settings.sync_seconds(), self._sync_regularly)

    def _draw(self) -> None:
        interval = self._display.interval_s
        if interval is not None:
            self._progress.resources = str(self._running.pool)
            self._progress.note = self.calls.scheduler_note()
            self._display.update(self._progress.status())
            self._display.refresh()
            self._loop.call_later(interval, self._draw)
