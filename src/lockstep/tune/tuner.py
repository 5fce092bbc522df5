"""Tuner: runs a trainable with many configs and returns the result of each."""

from __future__ import annotations

import copy
import os
import random
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockstep import runtime, settings
from lockstep.config import RunConfig
from lockstep.console.experiment import make_experiment_display
from lockstep.engine import choose_engine
from lockstep.engine.loop import EventLoop
from lockstep.errors import LockstepError, TrainingInterrupted, TrainingPreempted
from lockstep.hooks import call_hook
from lockstep.metrics import first_of
from lockstep.storage import Storage, open_storage
from lockstep.trackers import CSVLoggerCallback, JsonLoggerCallback
from lockstep.train.driver.callbacks import CallbackDispatcher
from lockstep.train.driver.drive import (
    Impatience,
    driver_signals,
    install_quiet_excepthook,
)
from lockstep.train.function.sources import changed_note, name_of, sources_of
from lockstep.train.record.run import experiment_storage
from lockstep.train.trainer import BaseTrainer, DataParallelTrainer
from lockstep.tune.execution.launch import (
    Launcher,
    check_space,
    check_trainable,
    describe_trainable,
    plain_space,
)
from lockstep.tune.execution.loop import TuneLoop
from lockstep.tune.execution.resources import ResourcePool
from lockstep.tune.experiment.experiment import Experiment
from lockstep.tune.experiment.records import ExperimentRecords
from lockstep.tune.experiment.replay import RestoredTrials, Resumption, restore_trials
from lockstep.tune.experiment.saved_tuner import load_sources, load_tuner, pack_tuner
from lockstep.tune.experiment.subject import (
    changed_constants,
    check_same_space,
    check_same_trainable,
    describe_space,
)
from lockstep.tune.experiment.trial import TrialSnapshots
from lockstep.tune.registry import registered_trainable
from lockstep.tune.reporting.progress import ExperimentProgress
from lockstep.tune.result_grid import ResultGrid
from lockstep.tune.schedulers import FIFOScheduler, TrialScheduler
from lockstep.tune.search import BasicVariantGenerator, Searcher
from lockstep.tune.search.space import Space, has_unresolved
from lockstep.tune.stopper import Stopper
from lockstep.tune.tune_config import TuneConfig
from lockstep.warm import reload_session

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["TuneConfig", "Tuner"]


class Tuner:
    """Runs a trainable with many configs.

    Args:
        trainable: a trainer, a training function (of one argument, the config), or a
            ``tune.Trainable`` class.
        param_space: the hyperparameters: values, and ``tune.uniform``, ``tune.grid_search`` and
            so on anywhere among them. For a trainer the keys are the trainer's arguments:
            ``train_loop_config``, ``scaling_config``, ``run_config``, ``datasets``, each merged
            over the trainer's own.
        tune_config: metric, searcher, scheduler, number of trials, time budget.
        run_config: storage, callbacks, stop conditions, retries; by default the trainer's.
    """

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        if trainable is None:
            raise ValueError("Tuner(trainable=None): give a trainer, a function or a class.")
        if isinstance(trainable, str):
            trainable = registered_trainable(trainable)
        if isinstance(trainable, BaseTrainer):
            trainable = trainable.as_trainable()
        check_trainable(trainable)
        for name, value, kind in (
            ("tune_config", tune_config, TuneConfig),
            ("run_config", run_config, RunConfig),
        ):
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"Tuner({name}={value!r}): expected a {kind.__name__}.")
        if run_config is None and isinstance(trainable, DataParallelTrainer):
            run_config = trainable.run_config
        self._trainable = trainable
        Space(param_space)  # raises if the space is invalid
        self._space = plain_space(trainable, param_space)
        check_space(trainable, self._space)
        self._tune_config = tune_config or TuneConfig()
        self._run_config = run_config or RunConfig()
        if self._tune_config.chdir_to_trial_dir:
            self._run_config = replace(self._run_config, working_dir="run")
        self._restored: Storage | None = None
        self._resumption = Resumption()
        self._replace_saved = True
        self._kept_sources: Mapping[str, str] | None = None
        self._grid: ResultGrid | None = None

    # -------------------------------------------------------------------------------- public

    def fit(self) -> ResultGrid:
        """Run every trial, and return when all are over. A failed trial is a result with its error.

        Raises:
            TrainingInterrupted: Ctrl-C (a KeyboardInterrupt); the message says how to resume.
            InsufficientResourcesError: no trial could ever run here.
            LockstepError: the searcher or the scheduler raised.
        """
        with ExitStack() as cleanup:
            experiment, past = self._reopen_experiment()
            if experiment is not None and past is not None:
                cleanup.callback(experiment.close)
                self._check_same(past)
            pool = _resource_pool()
            scheduler = self._tune_config.scheduler or FIFOScheduler()
            run_config = _with_fresh_stopper(self._run_config)
            function = self._function
            sources = self._kept_sources
            if sources is None:
                sources = sources_of(function)
            launcher = Launcher(
                self._trainable,
                run_config,
                pool,
                scheduler,
                sources,
                reuse_actors=bool(self._tune_config.reuse_actors),
            )
            if not (launcher.over_trainer and "scaling_config" in self._space):
                launcher.check()
            seed = random.getrandbits(63) if past is None else int(past.header["seed"])
            saved = None
            if past is None or self._replace_saved:
                saved = pack_tuner(
                    self._trainable, self._space, self._tune_config, self._run_config, sources
                )
            searcher, constants = self._make_searcher(seed)
            total = searcher.num_trials(self._tune_config.num_samples)
            self._prepare_scheduler(scheduler, total)
            if experiment is None:
                experiment = self._create_experiment(
                    launcher.kind, launcher.name, seed, total, saved
                )
                cleanup.callback(experiment.close)
            else:
                assert past is not None
                experiment.resume(past, saved)
            display = make_experiment_display(
                self._run_config.verbose,
                interactive_function=launcher.engine.in_this_process,
            )
            restored = RestoredTrials()
            if past is not None:
                restored = restore_trials(
                    past,
                    searcher,
                    scheduler,
                    run_config.stop,
                    space=self._space,
                    trainable_name=launcher.name,
                    metric=first_of(self._tune_config.metric),
                    resumption=self._resumption,
                )
                restored.problems += changed_constants(past.header, self._space)
            if self._kept_sources is not None:
                call = self._restore_call(experiment.storage.uri)
                note = changed_note(self._kept_sources, function, call)
                restored.problems.extend(filter(None, [note]))
            for text in restored.problems:
                display.message(text, "warning")
            loop = EventLoop()
            cleanup.callback(loop.close)
            callbacks = CallbackDispatcher(
                [*self._run_config.callbacks, CSVLoggerCallback(), JsonLoggerCallback()],
                lambda text: display.message(text, "warning"),
                settings.callback_flush_seconds(),
                TrialSnapshots(restored.trials, experiment.storage),
                experiment.callback_states,
            )
            cleanup.callback(callbacks.close)
            progress = ExperimentProgress(
                restored.trials, self._tune_config, total, experiment.name, experiment.storage.uri
            )
            tuning = TuneLoop(
                loop=loop,
                experiment=experiment,
                launcher=launcher,
                searcher=searcher,
                scheduler=scheduler,
                pool=pool,
                tune_config=self._tune_config,
                run_config=run_config,
                space=self._space,
                constants=constants,
                total=total,
                callbacks=callbacks,
                display=display,
                progress=progress,
                restored=restored,
            )
            display.start(progress.status())
            if reload_session.current() is not None:
                note = "lockstep run --reload continues runs of trainers; a Tuner keeps its code."
                display.message(note, "warning")
            cleanup.callback(lambda: display.finish(progress.status()))
            callbacks.begin(self._run_config.stop, -1 if total is None else total)
            with Impatience() as impatience:
                signals: Any = nullcontext()
                if not launcher.engine.in_this_process:
                    ending = tuning.ending
                    signals = driver_signals(ending.interrupt, ending.preempt, impatience)
                with impatience.cuts_short(), signals:
                    try:
                        tuning.run()
                    except BaseException:
                        progress.state = "failed"
                        raise
                with impatience.cuts_short():
                    callbacks.finish(TrialSnapshots(restored.trials, experiment.storage))
                    callbacks.close()
            experiment.record_end(tuning.ending.state)
            progress.state = tuning.ending.state
            statuses = {trial.directory: trial.status for trial in restored.trials if trial.begun}
            config = self._tune_config
            self._grid = ResultGrid(experiment.storage, statuses, config.metric, config.mode)
        return self._conclude(tuning, experiment.storage.uri)

    def get_results(self) -> ResultGrid:
        """The results of ``fit()``, or the results so far of a restored experiment.

        Raises:
            RuntimeError: there are no results yet.
        """
        if self._grid is None and self._restored is not None:
            config = self._tune_config
            return ResultGrid.of(ExperimentRecords(self._restored), config.metric, config.mode)
        if self._grid is None:
            raise RuntimeError("Tuner.get_results(): there are no results yet; call fit() first.")
        return self._grid

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        trainable: Any = None,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: Mapping[str, Any] | None = None,
        storage_filesystem: pyarrow.fs.FileSystem | None = None,
        *,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> Tuner:
        """A tuner that resumes an earlier experiment, in its directory.

        Trials that are over are not run again. Unfinished trials resume from their newest
        checkpoint, or start over if they have none. This executes code that is kept in the
        directory: restore only what you trust.

        Args:
            path: the experiment's directory.
            trainable: replaces the experiment's own, which is stored with the experiment; the same
                trainable by its kind and name, with other code.
            resume_unfinished: resume the trials that were not over.
            resume_errored: resume failed trials, from their newest checkpoints.
            restart_errored: restart failed trials, from the beginning.
            param_space: replaces the experiment's own; it has to be the same space.
            storage_filesystem: a ``pyarrow.fs.FileSystem`` that ``path`` is a path on.
            tune_config, run_config: replace the experiment's own. Callbacks that could not be
                pickled have to be given again here.

        Raises:
            FileNotFoundError: there is no experiment.
            ValueError: an argument could not be stored, or cannot be loaded here, and has to be
                given; or the trainable or the space is not the experiment's.
        """
        if resume_errored and restart_errored:
            raise ValueError(
                "Tuner.restore(resume_errored=True, restart_errored=True): give one of them."
            )
        records = ExperimentRecords(open_storage(path, storage_filesystem))
        arguments: dict[str, Any] = {
            "trainable": trainable,
            "param_space": param_space,
            "tune_config": tune_config,
            "run_config": run_config,
        }
        given = {name: value for name, value in arguments.items() if value is not None}
        kept = load_tuner(records.saved_tuner, records.storage.uri, given)
        tuner = cls(**{**kept, **given})
        tuner._restored = records.storage
        tuner._resumption = Resumption(resume_unfinished, resume_errored, restart_errored)
        tuner._replace_saved = bool(given)
        if trainable is None:
            tuner._kept_sources = load_sources(records.saved_tuner)
        tuner._check_same(records)
        return tuner

    def resume_with(self, resumption: Resumption) -> None:
        """Internal: which trials to resume if ``RunConfig(resume=…)`` finds an experiment."""
        self._resumption = resumption

    @classmethod
    def can_restore(
        cls,
        path: str | os.PathLike[str],
        storage_filesystem: pyarrow.fs.FileSystem | None = None,
    ) -> bool:
        """Whether ``restore(path)`` would find an experiment."""
        try:
            return ExperimentRecords(open_storage(path, storage_filesystem)).saved_tuner is not None
        except FileNotFoundError:
            return False

    # -------------------------------------------------------------------------------- helpers

    def _reopen_experiment(self) -> tuple[Experiment, ExperimentRecords] | tuple[None, None]:
        """The experiment to resume, locked, and its journal; None to create one."""
        if self._restored is not None:
            return Experiment.reopen(self._restored, self._space)
        if self._run_config.resume == "never" or self._run_config.name is None:
            return None, None
        storage = experiment_storage(self._run_config, self._run_config.name)
        what = "no experiment"
        with suppress(FileNotFoundError):
            experiment, past = Experiment.reopen(storage, self._space)
            again = self._resumption.errored or self._resumption.restart_errored
            if past.state != "finished" or again:
                return experiment, past
            experiment.close()
            what = "only one that has finished"
        if self._run_config.resume == "must":
            raise FileNotFoundError(
                f"RunConfig(name={self._run_config.name!r}, resume='must'): there is {what} in "
                f"{storage.uri}; use resume='auto' to create one."
            )
        return None, None

    def _check_same(self, past: ExperimentRecords) -> None:
        """Raise unless this tuner searches what the experiment has searched."""
        caller = f"RunConfig(name={self._run_config.name!r}, resume={self._run_config.resume!r})"
        if self._restored is not None:
            caller = f"Tuner.restore({past.storage.uri!r})"
        check_same_trainable(caller, past.header, *describe_trainable(self._trainable))
        check_same_space(caller, past.header, self._space)

    def _make_searcher(self, seed: int) -> tuple[Searcher, dict[str, Any]]:
        """The searcher, and the constants that are merged under its suggestions."""
        config = self._tune_config
        searcher = config.search_alg or BasicVariantGenerator(random_state=seed)
        taken = call_hook(
            searcher.set_search_properties,
            metric=config.metric,
            mode=config.mode,
            config=self._space,
            num_samples=config.num_samples,
        )
        if not taken and has_unresolved(self._space):
            raise ValueError(
                f"TuneConfig(search_alg={type(searcher).__name__}): the searcher has its own "
                "space, so param_space may hold constants only; leave one of the two out."
            )
        bounded = config.time_budget_s is not None or isinstance(self._run_config.stop, Stopper)
        endless = config.num_samples == -1 and isinstance(searcher, BasicVariantGenerator)
        if endless and not bounded:
            raise ValueError(
                "TuneConfig(num_samples=-1) would never end; give time_budget_s=…, or "
                "RunConfig(stop=…) a Stopper that ends the experiment."
            )
        return searcher, {} if taken else self._space

    def _prepare_scheduler(self, scheduler: TrialScheduler, total: int | None) -> None:
        config = self._tune_config
        metric, mode = first_of(config.metric), first_of(config.mode)
        taken = call_hook(
            scheduler.set_search_properties, metric=metric, mode=mode, num_trials=total
        )
        if not taken:
            raise ValueError(
                f"TuneConfig(metric={metric!r}, mode={mode!r}): the {type(scheduler).__name__} has "
                f"metric={scheduler.metric!r} and mode={scheduler.mode!r}; give them in one place."
            )

    def _create_experiment(
        self, kind: str, trainable: str, seed: int, total: int | None, saved: bytes | None
    ) -> Experiment:
        date = time.strftime("%Y-%m-%d_%H-%M-%S")
        name = self._run_config.name or f"{trainable}_{date}"
        storage = experiment_storage(self._run_config, name)
        header = {
            "name": name,
            "trainable": trainable,
            "trainable_kind": kind,
            "space": describe_space(self._space),
            "metric": self._tune_config.metric,
            "mode": self._tune_config.mode,
            "num_samples": self._tune_config.num_samples,
            "num_trials": total,
            "seed": seed,
        }
        assert saved is not None
        return Experiment.create(storage, header, saved, self._space)

    @property
    def _function(self) -> Any:
        """The function or the class that trials run."""
        if isinstance(self._trainable, DataParallelTrainer):
            return self._trainable.train_loop_per_worker
        return self._trainable

    def _restore_call(self, uri: str) -> str:
        """The call that resumes the experiment with the trainable as the script has it then."""
        return f"Tuner.restore({uri!r}, trainable={name_of(self._trainable) or '…'}).fit()"

    def _conclude(self, tuning: TuneLoop, uri: str) -> ResultGrid:
        grid = self._grid
        assert grid is not None
        done = grid.num_terminated + grid.num_errors
        advice = f"{done} trial(s) are done, in {uri}. To resume: {self._restore_call(uri)}"
        calls, ending = tuning.calls, tuning.ending
        if calls.failure is not None:
            error = calls.failure
            what = f"{calls.culprit} raised {type(error).__name__}: {error}".rstrip(".")
            raise LockstepError(f"{what}; {advice}") from error
        if ending.interrupted:
            install_quiet_excepthook()
            raise TrainingInterrupted(f"Interrupted: {advice}")
        if ending.preempted:
            text = f"Preempted: {advice}"
            print(text, file=sys.stderr)
            raise TrainingPreempted(text)
        if ending.failed_trial is not None and self._run_config.failure_config.fail_fast == "raise":
            failed = grid[grid.index_of(ending.failed_trial.directory)].error
            if failed is not None:
                raise failed
        return grid


def _with_fresh_stopper(run_config: RunConfig) -> RunConfig:
    """The config with a copy of its stopper: the original may be used for another experiment."""
    if isinstance(run_config.stop, Stopper):
        with suppress(TypeError):  # a user's stopper may hold what cannot be copied
            return replace(run_config, stop=copy.deepcopy(run_config.stop))
    return run_config


def _resource_pool() -> ResourcePool:
    return ResourcePool(*choose_engine(runtime.current().engine).resources())
