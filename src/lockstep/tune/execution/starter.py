"""Making trials and opening their runs: new, gone on with, or failed before they began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.error_record import pack_error
from lockstep.errors import LockstepError
from lockstep.records import address_from
from lockstep.retention import CheckpointRecord
from lockstep.run_layout import run_directory
from lockstep.train.driver.events import Phase
from lockstep.train.driver.failure import WorkerFailure, describe, error_records
from lockstep.train.record.run import Run, RunPlace
from lockstep.tune.execution.adopt import adopt_checkpoint
from lockstep.tune.execution.launch import Launcher
from lockstep.tune.experiment.experiment import Experiment
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.search.space import evaluated_params, experiment_tag
from lockstep.tune.tune_config import TuneConfig

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint

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
            wanted = _asked("trial_dirname_creator", creator, trial)
            if not wanted or wanted.strip(".") == "" or "/" in wanted or "\0" in wanted:
                raise ValueError(
                    f"TuneConfig(trial_dirname_creator=…) returned {wanted!r}; return the name of "
                    "a directory, without slashes."
                )
        else:
            tag = trial.experiment_tag[:_DIRECTORY_TAG]
            wanted = run_directory(trial.trainable_name, trial.trial_id, tag)
        trial.directory = self._experiment.free_directory(wanted, trial.trial_id)
        trial.path = self._experiment.storage.path(trial.directory)

    def source(self, checkpoint: Checkpoint, trials: Sequence[Trial]) -> str:
        """``<directory of a trial>/<name>``: how this experiment calls a trial's checkpoint.

        Raises:
            ValueError: it is no trial's.
        """
        storage = self._experiment.storage
        path = str(checkpoint.path)
        inside = path.removeprefix(storage.path("").rstrip("/") + "/")
        if inside != path and inside.partition("/")[0] in {one.directory for one in trials}:
            return inside
        # One that was never uploaded may lie somewhere else.
        for donor in trials:
            if donor.checkpoint is checkpoint:
                place = address_from(storage.child(donor.directory), checkpoint)
                return f"{donor.directory}/{place.removeprefix('./')}"
        raise ValueError(f"exploit({checkpoint!r}): it is not the newest checkpoint of a trial.")

    def change(self, trial: Trial, config: Mapping[str, Any], source: str | None) -> None:
        """Let a trial that is being paused go on with this config, from that checkpoint.

        The run that has it keeps it until then.
        """
        self._experiment.record_exploit(trial, config, source)
        trial.config = dict(config)
        trial.evaluated_params = evaluated_params(self._space, config)
        if source is not None:
            self._exploits[trial.trial_id] = source

    def release(self, trial: Trial) -> str | None:
        """It waits for no other trial's checkpoint any more; returns for which it did."""
        return self._exploits.pop(trial.trial_id, None)

    def waits_for(self, trial: Trial) -> str | None:
        """The other trial's checkpoint that it is to go on from."""
        return self._exploits.get(trial.trial_id)

    def open_run(self, trial: Trial) -> Run:
        """Its run: begun, or gone on with from its newest checkpoint."""
        if not trial.begun:
            creator = self._config.trial_name_creator
            name = str(trial)
            if creator is not None:
                name = _asked("trial_name_creator", creator, trial)
            return self._begin_run(trial, name)
        run = self._reopen_run(trial)
        source = self.waits_for(trial)
        if source is not None:
            try:
                adopt_checkpoint(run, self._experiment.storage, source)
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
        """A run that keeps what other trials are to go on from."""
        directory, wanted = trial.directory, self._exploits

        def is_protected(record: CheckpointRecord) -> bool:
            name = record.name.removeprefix("./")  # as ``source`` calls it
            return f"{directory}/{name}" in tuple(wanted.values())

        run.is_protected = is_protected
        return run

    def finish_run(self, trial: Trial) -> None:
        """A trial is over that is not running: its run says that it has finished. In any thread."""
        run = self._reopen_run(trial)
        try:
            run.end(Phase.FINISHED.value)
            run.finish_copy()
        finally:
            run.close()

    def record_failure(self, trial: Trial, run: Run | None, error: Exception) -> None:
        """A trial that could not start is a run all the same, with its error."""
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


def _asked(name: str, creator: Callable[[Trial], str], trial: Trial) -> str:
    try:
        return str(creator(trial))
    except Exception as error:
        raise LockstepError(
            f"TuneConfig({name}=…) raised {type(error).__name__}: {error}, for trial "
            f"{trial.trial_id}; return a name."
        ) from error
