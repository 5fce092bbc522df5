"""The loop over runs: which trial runs next, when each stops, and what becomes of it.

    searcher ──suggest──▶ PENDING ──room──▶ RUNNING ──its run ended──▶ TERMINATED | ERROR
                                              │  ▲
                              scheduler PAUSE ▼  │ scheduler chooses it
                                             PAUSED

Every trial is a run with a controller of its own; all of them share this thread's event loop.
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
from lockstep.train.driver.stop_condition import reaches
from lockstep.train.record.run import Run
from lockstep.tune.execution.finisher import RunFinisher
from lockstep.tune.execution.launch import Launcher
from lockstep.tune.execution.listener import TrialListener
from lockstep.tune.execution.resources import ResourcePool
from lockstep.tune.execution.running_trial import Outcome, RunningTrial
from lockstep.tune.execution.starter import TrialStarter
from lockstep.tune.execution.user_calls import GuardedCalls, checked_choice, checked_suggestion
from lockstep.tune.experiment.experiment import Experiment
from lockstep.tune.experiment.replay import RestoredTrials
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.reporting.notices import Notices
from lockstep.tune.reporting.progress import ExperimentProgress
from lockstep.tune.reporting.trial_display import TrialDisplay
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.search import Searcher
from lockstep.tune.search.space import merge
from lockstep.tune.stopper import Stopper
from lockstep.tune.tune_config import TuneConfig

__all__ = ["TuneLoop"]

SYNC_INTERVAL_S = 10.0
"""How old the experiment's journal on remote storage may get."""

STOP_ALL_CHECK_S = 0.5
"""How often a Stopper is asked whether everything ends."""


class TuneLoop:
    """Runs trials until there are no more. The ``tune_controller`` that schedulers are given.

    Args:
        constants: laid under each suggestion.
        revived: the trials of a restored experiment; searcher and scheduler know them.
    """

    def __init__(
        self,
        *,
        loop: EventLoop,
        experiment: Experiment,
        launcher: Launcher,
        searcher: Searcher,
        scheduler: TrialScheduler,
        machine: ResourcePool,
        tune_config: TuneConfig,
        run_config: RunConfig,
        space: Mapping[str, Any],
        constants: Mapping[str, Any],
        total: int | None,
        callbacks: CallbackDispatcher,
        display: Display,
        progress: ExperimentProgress,
        revived: RestoredTrials,
    ) -> None:
        self._loop = loop
        self._experiment = experiment
        self._launcher = launcher
        self._searcher = searcher
        self._scheduler = scheduler
        self._machine = machine
        self._config = tune_config
        self._run_config = run_config
        self._space = space
        self._constants = constants
        self._total = total
        self._callbacks = callbacks
        self._display = display
        self._progress = progress
        self._trials = revived.trials
        self._told_to_stop = revived.stopped
        self._unfinished = {trial.trial_id: trial for trial in self._trials if not trial.over}
        self._live: dict[str, RunningTrial] = {}
        self._suggestions_over = False
        self._asked_in_vain = False
        self._look_for_work = True
        self._ending: str | None = None
        self._leave_unfinished = False
        self._notices = Notices(display)
        self._limit = tune_config.max_concurrent_trials or None
        if launcher.engine.in_this_process:
            self._limit = 1
        self.interrupted = False
        self.preempted = False
        self.failed_trial: Trial | None = None
        """The one that ended everything, with ``fail_fast``."""
        self.asked = self._ask = GuardedCalls(self._give_up)
        self._searcher_name = f"the searcher {type(searcher).__name__}"
        self._scheduler_name = f"the scheduler {type(scheduler).__name__}"
        self._starter = TrialStarter(experiment, launcher, tune_config, space, revived.exploits)
        self._finisher = RunFinisher(loop, self._starter, callbacks, self._notices)
        taken = {trial.index for trial in self._trials}
        self._free = [index for index in range(max(taken, default=0)) if index not in taken]
        """Numbers below the others' that no trial has."""
        for trial in revived.restarted:
            self._starter.place(trial)
        for trial in revived.given_up:
            experiment.record_status(trial)
        for index, config in revived.lost:
            self._add(index, config)

    # ----------------------------------------------------------- what schedulers may ask for

    def get_trials(self) -> Sequence[Trial]:
        """Every trial there has been."""
        return self._trials

    def get_live_trials(self) -> Sequence[Trial]:
        """Those that are not over, in the order they were added."""
        return list(self._unfinished.values())

    def stop_trial(self, trial: Trial) -> None:
        """End a trial that is not running; one that is, at its next report."""
        live = self._live.get(trial.trial_id) or self._finisher.uploading.get(trial.trial_id)
        if live is not None:
            live.stopped = True
        elif not trial.over:
            self._tell_searcher(trial, error=False)
            self._ask(self._scheduler_name, self._scheduler.on_trial_remove, self, trial)
            paused = trial.status == "PAUSED"
            trial.status = "TERMINATED"
            snapshot = trial.snapshot()
            self._over(trial, "TERMINATED")
            if trial.begun:
                self._finisher.finish(trial)
            if paused:
                iteration = int(trial.last_result.get("training_iteration", 0))
                self._callbacks.end(iteration, snapshot, False)

    def exploit(self, trial: Trial, config: Mapping[str, Any], checkpoint: Any) -> bool:
        """Let a trial that is being paused go on with this config, from that checkpoint."""
        source = None
        if checkpoint is not None:
            source = self._starter.source(checkpoint, self._trials)
            directory, _, name = source.partition("/")
            for live in self._live.values():
                # One that was not uploaded may be "./name".
                kept = [record.name.removeprefix("./") for record in live.run.checkpoints]
                if live.trial.directory == directory and kept and name not in kept:
                    source = f"{directory}/{kept[-1]}"  # it has just committed another
        self._starter.change(trial, config, source)
        return True

    # ------------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Run everything to its end. On any way out no worker is left."""
        with ExitStack() as cleanup:
            cleanup.callback(self._finisher.shutdown)
            cleanup.callback(self._close)
            budget = self._config.budget_seconds
            if budget is not None:
                self._loop.call_later(budget, lambda: self._end_all("the time budget is used up"))
            if isinstance(self._run_config.stop, Stopper):
                self._ask_stopper(self._run_config.stop)
            if not self._experiment.storage.is_local:
                self._sync_regularly()
            self._draw()
            for trial in self._told_to_stop:
                self.stop_trial(trial)
            while self._start_what_fits():
                self._loop.run_once()
                ended = [live for live in self._live.values() if live.ended]
                for live in ended:
                    self._ended(live)
            if not self._leave_unfinished:
                for trial in list(self._unfinished.values()):
                    self.stop_trial(trial)
            self._loop.run_until(lambda: not self._finisher.under_way)

    @property
    def state(self) -> str:
        """How the experiment has ended."""
        return "interrupted" if self._leave_unfinished else "finished"

    def interrupt(self) -> None:
        """Ctrl-C: once lets workers clean up, twice kills them. Safe in a signal handler."""
        self.interrupted = self._leave_unfinished = True
        self._loop.call_soon(lambda: self._interrupt_all("interrupted", by_user=True))

    def preempt(self) -> None:
        """SIGTERM: every trial saves and stops. Safe in a signal handler."""
        self.preempted = self._leave_unfinished = True

        def tell() -> None:
            self._ending = self._ending or "preempted"
            for live in self._live.values():
                if live.controller is not None:
                    live.controller.preempt()

        self._loop.call_soon(tell)

    def _interrupt_all(self, why: str, *, by_user: bool = False) -> None:
        self._ending = self._ending or why
        for live in self._live.values():
            if live.controller is not None:
                live.controller.interrupt(by_user=by_user)

    def _end_all(self, why: str) -> None:
        """Let every trial stop at its next report; those that do not come to one are ended."""
        if self._ending is not None:
            return
        self._ending = why
        self._notices.stopping(why)
        for live in self._live.values():
            live.stopped = True
        grace = settings.stop_grace_seconds()
        self._loop.call_later(grace, lambda: self._interrupt_all(why))

    def _give_up(self, why: str) -> None:
        """End the experiment, which may be gone on with later."""
        self._leave_unfinished = True
        self._ending = self._ending or why
        self._loop.call_soon(lambda: self._interrupt_all(why))

    # ------------------------------------------------------------------------ starting trials

    def _start_what_fits(self) -> bool:
        """Start trials while there are some and there is room; whether anything is under way."""
        if self._look_for_work:
            self._look_for_work = False
            while self._ending is None and not (self._limit and len(self._live) >= self._limit):
                trial = self._next_trial()
                if trial is None or not self._start(trial):
                    break
        return bool(self._live or self._finisher.under_way)

    def _next_trial(self) -> Trial | None:
        """The trial to run next; a new one where none is pending and the searcher has one."""
        unfinished = self._unfinished.values()
        if not self._suggestions_over and all(trial.status != "PENDING" for trial in unfinished):
            # Only when there is room, so that the searcher knows as much as can be known.
            if not self._has_room():
                return None
            self._suggest()
        if self._ending is not None:
            return None
        choose = self._scheduler.choose_trial_to_run
        chosen: Trial | None = self._ask(self._scheduler_name, lambda: checked_choice(choose(self)))
        if chosen is None and unfinished and not self._live and not self._finisher.under_way:
            # Nobody else would wake them.
            return next(iter(unfinished))
        return chosen

    def _has_room(self) -> bool:
        if self._launcher.over_trainer and "scaling_config" in self._space:
            return True  # that depends on the config
        try:
            need = self._launcher.request(self._constants)
        except Exception:  # with_resources(…, function) that needs a real config
            return True
        share = self._machine.take(need)
        if share is not None:
            self._machine.give_back(share)
        return share is not None

    def _suggest(self) -> None:
        if self._total is not None and len(self._trials) >= self._total:
            self._suggestions_over = True
            return
        index = self._free[0] if self._free else len(self._trials)
        trial_id = self._experiment.trial_id(index)
        config = self._ask(
            self._searcher_name, lambda: checked_suggestion(self._searcher.suggest(trial_id))
        )
        self._asked_in_vain = config is None
        if config is None:
            return
        if isinstance(config, str):
            self._suggestions_over = True
            return
        self._add(index, config)

    def _add(self, index: int, suggestion: Mapping[str, Any]) -> None:
        """There is another trial, unless somebody who is asked for its sake raises."""
        whole = merge(self._constants, suggestion)
        config = self._ask(self._scheduler_name, self._scheduler.complete_config, whole)
        if config is None:
            return
        trial = self._ask("naming a trial", self._starter.new_trial, index, config)
        if trial is None:
            return
        if index in self._free:
            self._free.remove(index)
        self._trials.append(trial)
        self._unfinished[trial.trial_id] = trial
        self._progress.changed(trial)
        self._ask(self._scheduler_name, self._scheduler.on_trial_add, self, trial)

    def _start(self, trial: Trial) -> bool:
        """Start it if there is room; False if there is none."""
        try:
            prepared = self._launcher.prepare(trial.config)
        except Exception as error:
            self._failed_to_start(trial, None, error)
            return True
        share = self._machine.take(prepared.request)
        if share is None:
            return False
        if self._machine.too_large(prepared.request):
            self._notices.too_large(prepared.request, self._machine)
        run: Run | None = None
        trial.status = "RUNNING"
        try:
            again = trial.begun
            run = self._starter.open_run(trial)
            self._release(trial)
            if again and not run.checkpoints:
                self._notices.starts_over(trial)
            live = RunningTrial(trial, run, share, TrialListener(trial, self._callbacks))
            plan, live.payload = self._launcher.plan_run(prepared, run, share)
            live.stop_condition = plan.run_config.stop
            plan.engine.check(plan.group)
            live.controller = Controller(
                plan,
                run,
                loop=self._loop,
                callbacks=live.listener,
                display=TrialDisplay(trial, self._display),
                decide=partial(self._reported, live),
            )
        except Exception as error:
            self._machine.give_back(share)
            self._failed_to_start(trial, run, error)
            return True
        self._live[trial.trial_id] = live
        self._progress.changed(trial)
        self._experiment.record_status(trial, directory=trial.directory)
        live.controller.start()
        return True

    def _failed_to_start(self, trial: Trial, run: Run | None, error: Exception) -> None:
        """The trial is a row in the grid all the same, with its error."""
        try:
            self._starter.record_failure(trial, run, error)
        except LockstepError as worse:
            self._notices.problem(trial, str(worse))
        self._failed(trial, f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------------------------ decisions

    def _reported(self, live: RunningTrial, row: dict[str, Any]) -> bool:
        """Whether a trial stops at this report. Its workers wait for the answer."""
        trial = live.trial
        trial.last_result = row
        trial.reports += 1
        self._progress.reported(trial)
        self._notices.check_metric(self._config.metric, row)
        condition = live.stop_condition
        # First, because a stopper may raise: then the trial fails, and nobody has counted the row.
        stop = live.stopped or bool(row.get("done")) or reaches(condition, trial.trial_id, row)
        self._ask(self._searcher_name, self._searcher.on_trial_result, trial.trial_id, row)
        decide = self._scheduler.on_trial_result
        decision = self._ask(self._scheduler_name, decide, self, trial, row)
        if isinstance(condition, Stopper) and condition.stop_all():
            self._end_all("the stop condition of the experiment is reached")
        live.stopped = live.stopped or stop or decision == TrialScheduler.STOP
        live.pausing = decision == TrialScheduler.PAUSE
        if self._asked_in_vain or len(self._unfinished) > len(self._live):
            self._look_for_work = True
        return live.stopped or live.pausing

    # -------------------------------------------------------------------------- ending trials

    def _ended(self, live: RunningTrial) -> None:
        """A run is over: free what it held, write its end, and see what becomes of the trial."""
        assert live.controller is not None
        del self._live[live.trial.trial_id]
        live.controller.close()
        self._machine.give_back(live.share)
        self._look_for_work = True
        if live.phase is Phase.INTERRUPTED and not (self._ending or live.stopped or live.pausing):
            if self._launcher.engine.in_this_process:
                self.interrupt()  # Ctrl-C reached the function itself
            else:
                live.fail()
        outcome = live.outcome(leave_unfinished=self._leave_unfinished)
        if outcome in ("TERMINATED", "ERROR"):
            live.listener.tell_end()
        self._notices.problem(live.trial, live.write_end(outcome))
        if not live.run.storage.is_local:
            self._finisher.upload(live, lambda: self._settle(live, outcome))
            return
        if outcome in ("TERMINATED", "ERROR"):
            self._finisher.submit(live.put_away)  # flushing would hold the other trials up
        else:
            self._notices.problem(live.trial, live.put_away())  # it may be opened again at once
        self._settle(live, outcome)

    def _settle(self, live: RunningTrial, outcome: Outcome) -> None:
        trial = live.trial
        self._look_for_work = True
        if outcome == "ERROR":
            self._failed(trial, live.why_failed())
        elif outcome == "TERMINATED":
            self._tell_searcher(trial, error=False)
            result = trial.last_result or None
            complete = self._scheduler.on_trial_complete
            self._ask(self._scheduler_name, complete, self, trial, result)
            self._over(trial, "TERMINATED")
        else:
            trial.status = "PAUSED" if outcome == "PAUSED" else "PENDING"
            self._experiment.record_status(trial)
            self._progress.changed(trial)
            if live.stopped and outcome == "PAUSED":
                self.stop_trial(trial)  # somebody said so while it was being copied
        self._progress.resources = str(self._machine)

    def _failed(self, trial: Trial, text: str) -> None:
        trial.error = text
        self._notices.failed(trial, text)
        self._tell_searcher(trial, error=True)
        self._ask(self._scheduler_name, self._scheduler.on_trial_error, self, trial)
        self._over(trial, "ERROR")
        if self._run_config.failure_config.fail_fast and self._ending is None:
            self._leave_unfinished = True
            self.failed_trial = trial
            self._notices.stopping("a trial has failed (fail_fast)")
            self._interrupt_all("a trial has failed")

    def _tell_searcher(self, trial: Trial, *, error: bool) -> None:
        result = trial.last_result or None
        complete = self._searcher.on_trial_complete
        self._ask(self._searcher_name, complete, trial.trial_id, result, error)

    def _over(self, trial: Trial, status: Any) -> None:
        trial.status = status
        self._unfinished.pop(trial.trial_id, None)
        self._release(trial)
        more = {} if trial.error is None else {"error": trial.error}
        self._experiment.record_status(trial, **more)
        self._progress.over(trial)

    def _release(self, trial: Trial) -> None:
        """It has, or will not need, the other trial's checkpoint that was kept for it."""
        directory = (self._starter.release(trial) or "").partition("/")[0]
        for donor in self._trials if directory else ():
            if donor.directory == directory and donor.status == "TERMINATED":
                self._finisher.finish(donor)  # which deletes what it has too many of

    # --------------------------------------------------------------------------------- helpers

    def _ask_stopper(self, stopper: Stopper) -> None:
        if self._ending is not None:
            return
        if self._ask("the stop condition", stopper.stop_all):
            self._end_all("the stop condition of the experiment is reached")
        else:
            self._loop.call_later(STOP_ALL_CHECK_S, lambda: self._ask_stopper(stopper))

    def _sync_regularly(self) -> None:
        def sync() -> None:
            try:
                self._experiment.sync()
            except LockstepError as error:
                self._notices.once("sync", f"Could not copy the journal, will try again: {error}")

        self._finisher.submit(sync)
        self._loop.call_later(SYNC_INTERVAL_S, self._sync_regularly)

    def _draw(self) -> None:
        interval = self._display.interval_s
        if interval is not None:
            self._progress.resources = str(self._machine)
            note = self._ask(self._scheduler_name, self._scheduler.debug_string)
            self._progress.note = str(note or "")
            self._display.update(self._progress.status())
            self._display.refresh()
            self._loop.call_later(interval, self._draw)

    def _close(self) -> None:
        """Kill what is left."""
        for live in self._live.values():
            live.close()
        self._live.clear()
