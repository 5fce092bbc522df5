"""Creating trials and opening their runs: new ones, resumed ones, and ones that cannot start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.error_record import pack_error
from lockstep.errors import LockstepError
from lockstep.journal.records import address_from
from lockstep.retention import CheckpointRecord
from lockstep.run_layout import run_directory
from lockstep.train.driver.events import Phase
from lockstep.train.driver.failure import WorkerFailure, describe, error_records
from lockstep.train.record.run import Run, RunPlace
from lockstep.tune.execution.donor import copy_donor_checkpoint
from lockstep.tune.execution.launch import Launcher
from lockstep.tune.experiment.experiment import Experiment
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.search.space import evaluated_params, experiment_tag
from lockstep.tune.tune_config import TuneConfig

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint

__all__ = ["TrialStarter"]

_MAX_TAG = 100
"""How many characters of the tag are in the directory's name."""


@dataclass(frozen=True)
class TrialStarter:
    """Creates the trials of one experiment and opens their runs. Used from the loop's thread."""

    _experiment: Experiment
    _launcher: Launcher
    _config: TuneConfig
    _space: Mapping[str, Any]
    _donor_checkpoints: dict[str, str]
    """Trial id → the other trial's checkpoint from which the trial will continue. The donor's run
    keeps that checkpoint until the trial has copied it."""

    def new_trial(self, index: int, config: dict[str, Any]) -> Trial:
        """Create a trial: choose its directory, and record it in the journal."""
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
        self.choose_directory(trial)
        self._experiment.record_trial(trial)
        return trial

    def choose_directory(self, trial: Trial) -> None:
        """Choose the directory of a trial's run.

        Raises:
            ValueError: the user's function returned something that is no name.
            LockstepError: the user's function raised.
        """
        creator = self._config.trial_dirname_creator
        if creator is not None:
            name = _created_name("trial_dirname_creator", creator, trial)
            if not name or name.strip(".") == "" or "/" in name or "\0" in name:
                raise ValueError(
                    f"TuneConfig(trial_dirname_creator=…) returned {name!r}; return the name of "
                    "a directory, without slashes."
                )
        else:
            tag = trial.experiment_tag[:_MAX_TAG]
            name = run_directory(trial.trainable_name, trial.trial_id, tag)
        # The name that lockstep makes has the trial's id, which no other experiment has.
        trial.directory = self._experiment.free_directory(
            name, trial.trial_id, unique=creator is None
        )
        trial.path = self._experiment.storage.path(trial.directory)

    def source(self, checkpoint: Checkpoint, trials: Sequence[Trial]) -> str:
        """A trial's checkpoint as ``<directory of the trial>/<name of the checkpoint>``.

        Raises:
            ValueError: the checkpoint belongs to no trial.
        """
        storage = self._experiment.storage
        path = str(checkpoint.path)
        inside = path.removeprefix(storage.path("").rstrip("/") + "/")
        if inside != path and inside.partition("/")[0] in {one.directory for one in trials}:
            return inside
        # A checkpoint that was never uploaded may be anywhere on this machine.
        for donor in trials:
            if donor.checkpoint is checkpoint:
                place = address_from(storage.child(donor.directory), checkpoint)
                return f"{donor.directory}/{place.removeprefix('./')}"
        raise ValueError(f"exploit({checkpoint!r}): it is not the newest checkpoint of a trial.")

    def replace_config(self, trial: Trial, config: Mapping[str, Any], source: str | None) -> None:
        """Let a trial that is being paused continue with this config, from a donor's checkpoint."""
        self._experiment.record_exploit(trial, config, source)
        trial.config = dict(config)
        trial.evaluated_params = evaluated_params(self._space, config)
        if source is not None:
            self._donor_checkpoints[trial.trial_id] = source

    def release_donor(self, trial: Trial) -> str | None:
        """The donor need not keep a checkpoint for the trial any more; returns which it kept."""
        return self._donor_checkpoints.pop(trial.trial_id, None)

    def open_run(self, trial: Trial) -> Run:
        """Open a trial's run: a new one, or the earlier one with its newest checkpoint."""
        if not trial.begun:
            creator = self._config.trial_name_creator or str
            return self._begin_run(trial, _created_name("trial_name_creator", creator, trial))
        run = self._reopen_run(trial)
        source = self._donor_checkpoints.get(trial.trial_id)
        if source is not None:
            try:
                copy_donor_checkpoint(run, self._experiment.storage, source)
            # The journal's lock would keep the trial from being opened again.
            except BaseException:
                run.close()
                raise
        return run

    def _begin_run(self, trial: Trial, name: str) -> Run:
        storage = self._experiment.storage.child(trial.directory)
        place = RunPlace(storage, self._experiment.identity(trial, name))
        run = self._launcher.open_run(trial.config, place)
        trial.begun = True
        return self._protected(run, trial)

    def _reopen_run(self, trial: Trial) -> Run:
        storage = self._experiment.storage.child(trial.directory)
        run = self._launcher.reopen_run(trial.config, RunPlace(storage, {}))
        return self._protected(run, trial)

    def _protected(self, run: Run, trial: Trial) -> Run:
        """Let a run keep the checkpoints from which other trials will continue."""
        directory, donor_checkpoints = trial.directory, self._donor_checkpoints

        def is_protected(record: CheckpointRecord) -> bool:
            name = record.name.removeprefix("./")  # as in ``source``
            # A tuple, in one step: finish_run() calls this in another thread while the dict may
            # change.
            return f"{directory}/{name}" in tuple(donor_checkpoints.values())

        run.is_protected = is_protected
        return run

    def finish_run(self, trial: Trial) -> None:
        """Record the end of the run of a trial that is over and not running. In any thread."""
        run = self._reopen_run(trial)
        try:
            run.end(Phase.FINISHED.value)
            run.finish_copy()
        finally:
            run.close()

    def record_failure(self, trial: Trial, run: Run | None, error: Exception) -> None:
        """Record the error of a trial that could not start, in a run of its own or in ``run``."""
        if run is None:
            run = self._reopen_run(trial) if trial.begun else self._begin_run(trial, str(trial))
        try:
            failures = (WorkerFailure(0, pack_error(error)),)
            text = describe(failures, 1, 1)
            run.record_failure(1, error_records(failures), text, retry=False)
            run.end(Phase.FAILED.value)
            run.finish_copy()
        finally:
            run.close()


def _created_name(name: str, creator: Callable[[Trial], str], trial: Trial) -> str:
    try:
        return str(creator(trial))
    except Exception as error:
        raise LockstepError(
            f"TuneConfig({name}=…) raised {type(error).__name__}: {error}, for trial "
            f"{trial.trial_id}; return a name."
        ) from error
