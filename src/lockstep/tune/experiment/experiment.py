"""Writing an experiment's directory: its journal, the directories of its runs, the saved tuner.

    <storage>/<name>/
        experiment.jsonl                 the journal; ``records`` lists its events
        tuner.pkl                        trainable, space, configs and callbacks, for restore
        callbacks/                       the states that callbacks' ``get_state`` returned
        <trainable>_<trial id>_<tag>_<date>/    one run a trial, with its own journal

A second experiment of the same name has its files beside the first one's: ``experiment_2.jsonl``,
``tuner_2.pkl``. On remote storage the journal is written to a local spool and copied from there.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from lockstep.journal import Journal
from lockstep.journal.environment import EnvironmentRecorder
from lockstep.run_layout import (
    EXPERIMENT_SPOOL_PREFIX,
    FORMAT_VERSION,
    experiment_file,
    spool_prefix,
)
from lockstep.storage import Storage
from lockstep.train.record.leftovers import clear_leftovers
from lockstep.train.record.mirror import Mirror
from lockstep.tune.experiment.configs import encode_config
from lockstep.tune.experiment.records import (
    ExperimentRecords,
    TrialRecord,
    experiment_numbers,
    newest_experiment,
)
from lockstep.tune.experiment.trial import Trial

__all__ = ["Experiment"]


class Experiment:
    """An experiment that this process drives. Used from the driver's thread, except ``sync``."""

    def __init__(self, storage: Storage, number: int, *, space: Any) -> None:
        self.storage = storage
        self.number = number
        self._space = space
        self.header: dict[str, Any] = {}
        name = experiment_file("journal", number)
        states = experiment_file("callbacks", number)
        self._mirror: Mirror | None = None
        with ExitStack() as undo:
            clear_leftovers()
            if not storage.is_local:
                prefix = spool_prefix(EXPERIMENT_SPOOL_PREFIX)
                self._mirror = Mirror(storage, name, prefix, leased=True)
                undo.callback(self._mirror.close)
                if storage.exists(name):
                    self._mirror.fetch([name, states] if storage.is_directory(states) else [name])
            directory = self._mirror.directory if self._mirror else storage.root
            self.callback_states = os.path.join(directory, states)
            """A directory on this machine for the states of callbacks."""
            # Listed once: on an object store, asking for each new name would cost a request a
            # trial.
            self._directories = set() if storage.is_local else set(storage.listdir(""))
            self._journal = Journal(os.path.join(directory, name))
            self._environment = EnvironmentRecorder(directory)
            undo.pop_all()

    @classmethod
    def create(
        cls, storage: Storage, header: Mapping[str, Any], saved_tuner: bytes, space: Any
    ) -> Experiment:
        """Create an experiment, beside the others of the directory."""
        storage.make_directory("")
        number = max(experiment_numbers(storage), default=0) + 1
        experiment = cls(storage, number, space=space)
        while storage.exists(experiment_file("tuner", number)):
            experiment.close()  # another driver created it before the lock was taken
            number += 1
            experiment = cls(storage, number, space=space)
        try:
            # The tuner before the journal: an experiment that has a journal can be restored.
            storage.write(experiment_file("tuner", number), saved_tuner)
            ids = {"trial_id_prefix": uuid.uuid4().hex[:5], "experiment_id": uuid.uuid4().hex}
            experiment.header = {"version": FORMAT_VERSION, **ids, **header, "time": time.time()}
            experiment._journal.append("experiment", **experiment.header)
            experiment.sync()
        except BaseException:
            experiment.close()
            raise
        return experiment

    @classmethod
    def reopen(cls, storage: Storage, space: Any) -> tuple[Experiment, ExperimentRecords]:
        """Lock the newest experiment of a directory, and only then read it. ``resume`` follows.

        Raises:
            FileNotFoundError: there is no experiment.
            StorageError: another process drives it.
        """
        number = newest_experiment(storage)
        experiment = cls(storage, number, space=space)
        try:
            # Not before: until the lock was taken, another driver may have run trials.
            return experiment, ExperimentRecords(storage, number)
        except BaseException:
            experiment.close()
            raise

    def resume(self, past: ExperimentRecords, saved_tuner: bytes | None) -> None:
        """Begin to write again; ``saved_tuner`` replaces the stored one, if it is given."""
        self.header = past.header
        self._directories |= {trial.directory for trial in past.trials.values()}
        if saved_tuner is not None:
            self.storage.write(experiment_file("tuner", self.number), saved_tuner)
        self._journal.append("restore", time=time.time())
        for trial in past.found_in_runs:
            self._journal.append("trial", **trial.added())

    @property
    def name(self) -> str:
        """The name of the directory."""
        return str(self.header["name"])

    def trial_id(self, index: int) -> str:
        """The id of the trial with this number."""
        return f"{self.header['trial_id_prefix']}_{index:05d}"

    def free_directory(self, preferred: str, trial_id: str, *, unique: bool) -> str:
        """A name for a run's directory that neither this nor another experiment uses.

        ``unique``: no other experiment can have the preferred name.
        """
        names = (f"{preferred}_{trial_id}_{number}" for number in itertools.count(2))
        for name in itertools.chain((preferred, f"{preferred}_{trial_id}"), names):
            # Remote storage was listed once, at the start: asking for each trial is slow.
            taken = not unique and self.storage.is_local and self.storage.exists(name)
            if name not in self._directories and not taken:
                break
        self._directories.add(name)
        return name

    def identity(self, trial: Trial, name: str) -> dict[str, Any]:
        """The ids that a trial's run records; ``trial`` among them repeats the ``trial`` event."""
        return {
            "trial_id": trial.trial_id,
            "experiment_id": self.header["experiment_id"],
            "experiment_tag": trial.experiment_tag,
            "experiment_name": self.name,
            "name": name,
            "trial": {
                "index": trial.index,
                "config": encode_config(trial.config, self._space),
                "experiment_tag": trial.experiment_tag,
                "time": time.time(),
            },
        }

    def record_trial(self, trial: Trial) -> None:
        """Record a new trial."""
        record = TrialRecord(
            trial.trial_id,
            trial.index,
            encode_config(trial.config, self._space),
            trial.experiment_tag,
            trial.directory,
            time.time(),
        )
        self._journal.append("trial", **record.added())

    def record_status(self, trial: Trial, **more: Any) -> None:
        """Record a trial's new status."""
        self._journal.append(
            "status", trial_id=trial.trial_id, status=trial.status, time=time.time(), **more
        )

    def record_exploit(
        self, trial: Trial, config: Mapping[str, Any], checkpoint: str | None
    ) -> None:
        """Record that a trial continues with another config, and from a donor's checkpoint."""
        self._journal.append(
            "exploit",
            trial_id=trial.trial_id,
            config=encode_config(config, self._space),
            checkpoint=checkpoint,
            time=time.time(),
        )

    def record_end(self, state: str) -> None:
        """Record how the experiment ended: ``"finished"`` or ``"interrupted"``."""
        self._journal.append("end", state=state, time=time.time())
        self._journal.flush()
        if self._mirror is not None:
            self._environment.close()
            self._mirror.finish()

    def sync(self) -> None:
        """Copy the journal, then changed states of callbacks, to remote storage. In any thread."""
        if self._mirror is not None:
            self._mirror.sync()

    def close(self) -> None:
        """Close the journal and delete the spool. Idempotent."""
        self._environment.close()
        self._journal.close()
        if self._mirror is not None:
            self._mirror.close()
