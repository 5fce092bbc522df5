"""An experiment's directory: its journal, its trials' runs, and the code to go on with it.

    <storage>/<name>/
        experiment.jsonl                 which trials there are and what was decided, a line each
        tuner.pkl                        trainable, space, configs and callbacks, for restore
        callbacks/                       what their ``get_state`` gave, where they have one
        <trainable>_<trial id>_<tag>_<date>/    one run a trial, with its own journal

What trials reported is in their own journals and nowhere else. A second experiment of the same
name lies beside the first: ``experiment_2.jsonl``, ``tuner_2.pkl``.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lockstep.journal import Journal, check_version, parse_line, read_lines
from lockstep.records import RunRecords
from lockstep.run_layout import (
    EXPERIMENT_SPOOL_PREFIX,
    FORMAT_VERSION,
    experiment_file,
    experiment_number,
)
from lockstep.storage import Storage
from lockstep.storage.base import join
from lockstep.tune.experiment.configs import encode_config
from lockstep.tune.experiment.trial import Trial

__all__ = ["Experiment", "ExperimentRecords", "TrialRecord", "experiment_numbers"]


def experiment_numbers(storage: Storage) -> list[int]:
    """The experiments in a directory, by number, oldest first."""
    numbers = map(experiment_number, storage.listdir(""))
    return sorted(number for number in numbers if number is not None)


@dataclass
class TrialRecord:
    """What the journal says of one trial."""

    trial_id: str
    index: int
    config: Any
    """As ``encode_config`` made it."""
    tag: str
    directory: str
    time: float
    status: str = "PENDING"
    changes: list[tuple[float, str]] = field(default_factory=list)
    """When it got which status."""
    exploit: dict[str, Any] | None = None
    """With which config and checkpoint it goes on, where a scheduler has changed them."""
    error: str | None = None


def _as_added(trial: TrialRecord) -> dict[str, Any]:
    names = ("trial_id", "index", "config", "tag", "directory", "time")
    return {name: getattr(trial, name) for name in names}


class ExperimentRecords:
    """An experiment's journal, read.

    Raises:
        FileNotFoundError: there is no experiment.
    """

    def __init__(self, storage: Storage, number: int | None = None) -> None:
        self.storage = storage
        numbers = experiment_numbers(storage) if number is None else [number]
        if not numbers:
            raise FileNotFoundError(
                f"{storage.uri} is not the directory of an experiment: there is no "
                f"{experiment_file('journal', 1)} in it."
            )
        self.number = numbers[-1]
        self.header: dict[str, Any] = {}
        self.trials: dict[str, TrialRecord] = {}
        self.adopted: list[TrialRecord] = []
        """Those of them that only their own runs tell of."""
        self.state = "unfinished"
        for line in read_lines(storage.read(experiment_file("journal", self.number))):
            self._take(parse_line(line))
        if not self.header:
            raise FileNotFoundError(
                f"{storage.path(experiment_file('journal', self.number))} records no experiment; "
                "the driver may have been killed as it began."
            )
        if not storage.is_local:
            self._adopt()

    @property
    def saved(self) -> bytes | None:
        """What ``Experiment.create`` was given to keep; None if it is not there."""
        try:
            return self.storage.read(experiment_file("tuner", self.number))
        except FileNotFoundError:
            return None

    def run_storage(self, trial: TrialRecord) -> Storage:
        """The directory of a trial's run."""
        return self.storage.child(trial.directory)

    def _take(self, record: dict[str, Any]) -> None:
        event = record.pop("event")
        if event == "experiment":
            check_version(record, self.storage.path(experiment_file("journal", self.number)))
            self.header = record
        elif event == "restore":
            self.state = "unfinished"
        elif event == "end":
            self.state = record["state"]
        elif event == "trial":
            self.trials[record["trial_id"]] = TrialRecord(**record)
        elif event == "status":
            trial = self.trials[record["trial_id"]]
            trial.status = record["status"]
            trial.changes.append((record["time"], record["status"]))
            trial.error = record.get("error")
            trial.directory = record.get("directory", trial.directory)
            if trial.status == "RUNNING" and trial.exploit is not None:
                trial.exploit["checkpoint"] = None  # it is the trial's own by now
        elif event == "exploit":
            self.trials[record["trial_id"]].exploit = record

    def _adopt(self) -> None:
        """Take trials that began after the journal was last copied to remote storage."""
        known = {trial.directory for trial in self.trials.values()}
        found: list[dict[str, Any]] = []
        for name in self.storage.listdir(""):
            if name in known or not self.storage.is_directory(name):
                continue
            with suppress(FileNotFoundError):
                run = RunRecords(self.storage.child(name)).run
                if run["experiment_id"] == self.header["experiment_id"]:
                    found.append({**run["trial"], "trial_id": run["trial_id"], "directory": name})
        for record in sorted(found, key=lambda record: int(record["index"])):
            if record["trial_id"] not in self.trials:
                self.trials[record["trial_id"]] = trial = TrialRecord(**record)
                self.adopted.append(trial)


class Experiment:
    """An experiment that is being driven. Used from the driver's thread, except ``sync``."""

    def __init__(self, storage: Storage, number: int, *, space: Any) -> None:
        self.storage = storage
        self.number = number
        self._space = space
        self._spool = None if storage.is_local else tempfile.mkdtemp(prefix=EXPERIMENT_SPOOL_PREFIX)
        self._name = experiment_file("journal", number)
        self._states = experiment_file("callbacks", number)
        directory = self._spool or storage.root
        self.callback_states = os.path.join(directory, self._states)
        """A directory on this machine for what callbacks want to have kept."""
        try:
            if self._spool is not None and storage.exists(self._name):
                storage.get(self._name, os.path.join(directory, self._name))
                if storage.is_directory(self._states):
                    storage.get(self._states, self.callback_states)
            self._directories = set() if storage.is_local else set(storage.listdir(""))
            self._journal = Journal(os.path.join(directory, self._name))
        except BaseException:
            self._remove_spool()
            raise
        self.header: dict[str, Any] = {}

    @classmethod
    def create(
        cls, storage: Storage, header: Mapping[str, Any], saved: bytes, space: Any
    ) -> Experiment:
        """A new one, beside those that are there."""
        storage.make_directory("")
        number = max(experiment_numbers(storage), default=0) + 1
        experiment = cls(storage, number, space=space)
        try:
            # Before the journal says that there is an experiment: one that is there restores.
            storage.write(experiment_file("tuner", number), saved)
            identity = {"prefix": uuid.uuid4().hex[:5], "experiment_id": uuid.uuid4().hex}
            header = {"version": FORMAT_VERSION, **identity, **header, "time": time.time()}
            experiment.header = header
            experiment._journal.append("experiment", **experiment.header)
            experiment.sync()
        except BaseException:
            experiment.close()
            raise
        return experiment

    @classmethod
    def reopen(cls, records: ExperimentRecords, saved: bytes | None, space: Any) -> Experiment:
        """Go on with one; ``saved`` replaces what was kept, if it is given."""
        experiment = cls(records.storage, records.number, space=space)
        try:
            experiment.header = records.header
            experiment._directories |= {trial.directory for trial in records.trials.values()}
            if saved is not None:
                experiment.storage.write(experiment_file("tuner", records.number), saved)
            experiment._journal.append("restore", time=time.time())
            for trial in records.adopted:
                experiment._journal.append("trial", **_as_added(trial))
        except BaseException:
            experiment.close()
            raise
        return experiment

    @property
    def name(self) -> str:
        """The directory's name."""
        return str(self.header["name"])

    def trial_id(self, index: int) -> str:
        """The id of the trial with this number."""
        return f"{self.header['prefix']}_{index:05d}"

    def free_directory(self, wanted: str, trial_id: str) -> str:
        """A name for a run's directory that is not in use, here or by another experiment."""
        names = (f"{wanted}_{trial_id}_{number}" for number in itertools.count(2))
        for name in itertools.chain((wanted, f"{wanted}_{trial_id}"), names):
            # On remote storage what was there at the beginning is known, and that is enough.
            taken = self.storage.is_local and self.storage.exists(name)
            if name not in self._directories and not taken:
                break
        self._directories.add(name)
        return name

    def identity(self, trial: Trial, name: str) -> dict[str, Any]:
        """What the trial's run says of itself."""
        return {
            "trial_id": trial.trial_id,
            "experiment_id": self.header["experiment_id"],
            "experiment_tag": trial.experiment_tag,
            "experiment_name": self.name,
            "name": name,
            "trial": {
                "index": trial.index,
                "config": encode_config(trial.config, self._space),
                "tag": trial.experiment_tag,
                "time": time.time(),
            },
        }

    def record_trial(self, trial: Trial) -> None:
        """There is a trial."""
        config = encode_config(trial.config, self._space)
        record = TrialRecord(
            trial.trial_id,
            trial.index,
            config,
            trial.experiment_tag,
            trial.directory,
            time.time(),
        )
        self._journal.append("trial", **_as_added(record))

    def record_status(self, trial: Trial, **more: Any) -> None:
        """Its status has changed."""
        self._journal.append(
            "status", trial_id=trial.trial_id, status=trial.status, time=time.time(), **more
        )

    def record_exploit(
        self, trial: Trial, config: Mapping[str, Any], checkpoint: str | None
    ) -> None:
        """It goes on with another config, from another trial's checkpoint."""
        self._journal.append(
            "exploit",
            trial_id=trial.trial_id,
            config=encode_config(config, self._space),
            checkpoint=checkpoint,
            time=time.time(),
        )

    def record_end(self, state: str) -> None:
        """It is over: finished, or interrupted."""
        self._journal.append("end", state=state, time=time.time())
        self._journal.flush()
        self.sync()

    def sync(self) -> None:
        """Copy the journal to remote storage. May run in another thread."""
        if self._spool is None:
            return
        states = os.listdir(self.callback_states) if os.path.isdir(self.callback_states) else []
        whole = [join(self._states, state) for state in states if state.endswith(".pkl")]
        for name in (self._name, *whole):
            with open(os.path.join(self._spool, name), "rb") as file:
                self.storage.write(name, file.read())

    def close(self) -> None:
        """Release the journal. Idempotent."""
        self._journal.close()
        self._remove_spool()

    def _remove_spool(self) -> None:
        if self._spool is not None:
            shutil.rmtree(self._spool, ignore_errors=True)
