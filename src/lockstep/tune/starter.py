"""Making trials and opening their runs: new, gone on with, or failed before they began."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from lockstep.error_record import pack_error
from lockstep.train.events import Phase
from lockstep.train.failure import WorkerFailure, describe
from lockstep.train.run import Run, RunPlace
from lockstep.tune.adopt import adopt_checkpoint
from lockstep.tune.experiment import Experiment
from lockstep.tune.launch import Launcher
from lockstep.tune.space import evaluated_params, experiment_tag
from lockstep.tune.trial import Trial
from lockstep.tune.tune_config import TuneConfig

__all__ = ["TrialStarter"]

_DIRECTORY_TAG = 100


class TrialStarter:
    """Makes trials of one experiment. Used from the loop's thread.

    Args:
        exploits: trial id → the checkpoint of another trial that it is to go on from.
    """

    def __init__(
        self,
        experiment: Experiment,
        launcher: Launcher,
        tune_config: TuneConfig,
        space: Mapping[str, Any],
        exploits: dict[str, str],
    ) -> None:
        self._experiment = experiment
        self._launcher = launcher
        self._config = tune_config
        self._space = space
        self._exploits = exploits

    def new_trial(self, index: int, config: dict[str, Any]) -> Trial:
        """A trial with a place of its own; it is in the journal."""
        trial = Trial(
            self._experiment.trial_id(index),
            index,
            config,
            trainable_name=self._launcher.name,
            experiment_tag=experiment_tag(index, self._space, config),
            evaluated_params=evaluated_params(self._space, config),
            directory="",
            path="",
        )
        self.place(trial)
        self._experiment.record_trial(trial)
        return trial

    def place(self, trial: Trial) -> None:
        """Choose its directory."""
        creator = self._config.trial_dirname_creator
        if creator is not None:
            wanted = str(creator(trial))
            if not wanted or wanted.strip(".") == "" or "/" in wanted or "\0" in wanted:
                raise ValueError(
                    f"TuneConfig(trial_dirname_creator=…) returned {wanted!r}; return the name of "
                    "a directory, without slashes."
                )
        else:
            date = time.strftime("%Y-%m-%d_%H-%M-%S")
            tag = trial.experiment_tag[:_DIRECTORY_TAG]
            wanted = f"{trial.trainable_name}_{trial.trial_id}_{tag}_{date}"
        trial.directory = self._experiment.free_directory(wanted, trial.trial_id)
        trial.path = self._experiment.storage.path(trial.directory)

    def change(self, trial: Trial, config: Mapping[str, Any], checkpoint: str | None) -> None:
        """Let a trial that is being paused go on with this config, from that checkpoint."""
        source = None
        if checkpoint is not None:
            source = checkpoint.removeprefix(self._experiment.storage.path("")).lstrip("/")
        self._experiment.record_exploit(trial, config, source)
        trial.config = dict(config)
        trial.evaluated_params = evaluated_params(self._space, config)
        if source is not None:
            self._exploits[trial.trial_id] = source

    def forget(self, trial: Trial) -> None:
        """It is over."""
        self._exploits.pop(trial.trial_id, None)

    def open_run(self, trial: Trial) -> Run:
        """Its run: begun, or gone on with from its newest checkpoint."""
        creator = self._config.trial_name_creator
        name = str(trial) if creator is None else str(creator(trial))
        storage = self._experiment.storage
        place = RunPlace(storage.child(trial.directory), self._experiment.identity(trial, name))
        if not trial.begun:
            run = self._launcher.open_run(trial.config, place)
            trial.begun = True
            return run
        run = self._launcher.reopen_run(trial.config, place)
        source = self._exploits.pop(trial.trial_id, None)
        if source is not None:
            try:
                adopt_checkpoint(run, storage, source)
            except BaseException:
                run.close()
                raise
        return run

    def finish_run(self, trial: Trial) -> None:
        """A trial is ended while it is paused: its run says that it has finished."""
        run = self.open_run(trial)
        try:
            run.end(Phase.FINISHED)
            run.hand_over()
        finally:
            run.close()

    def record_failure(self, trial: Trial, run: Run | None, error: Exception) -> None:
        """A trial that could not start is a run all the same, with its error."""
        run = run or self.open_run(trial)
        try:
            failures = (WorkerFailure(0, pack_error(error)),)
            run.record_failure(1, failures, describe(failures, 1, 1), retry=False)
            run.end(Phase.FAILED)
            run.hand_over()
        finally:
            run.close()
