"""Reading an experiment's journal: which trials there are, and how each of them ended.

The journal has one JSON object a line:

    event         written when                          besides its time
    ----------    ----------------------------------    -------------------------------------------
    experiment    the experiment was created            name, ids, seed, what is searched
    trial         a trial was added                     its number, config and directory
    status        a trial's status changed              the status; why the trial failed, or
                                                        that the scheduler has ended it
    exploit       a scheduler replaced a config         the config; another trial's checkpoint
    restore       another driver resumed the experiment
    end           the driver ended                      "finished" or "interrupted"

What a trial reported is in the journal of its own run.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lockstep.checks import is_number
from lockstep.journal import check_version, parse_line, read_lines
from lockstep.journal.records import RunRecords, damage_named
from lockstep.journal.segments import read_journal
from lockstep.run_layout import experiment_file, experiment_number
from lockstep.storage import Storage

__all__ = [
    "ExperimentRecords",
    "TrialRecord",
    "experiment_numbers",
    "final_status",
    "newest_experiment",
]


def experiment_numbers(storage: Storage) -> list[int]:
    """The numbers of the experiments in a directory, oldest first."""
    numbers = map(experiment_number, storage.listdir(""))
    return sorted(number for number in numbers if number is not None)


def newest_experiment(storage: Storage) -> int:
    """The number of the newest experiment in a directory.

    Raises:
        FileNotFoundError: there is none.
    """
    numbers = experiment_numbers(storage)
    if not numbers:
        raise FileNotFoundError(
            f"{storage.uri} is not the directory of an experiment: there is no "
            f"{experiment_file('journal', 1)} in it."
        )
    return numbers[-1]


@dataclass
class TrialRecord:
    """The journal's lines about one trial."""

    trial_id: str
    index: int
    config: Any
    """The config as ``encode_config`` returned it."""
    experiment_tag: str
    directory: str
    time: float
    status: str = "PENDING"
    status_changes: list[tuple[float, str]] = field(default_factory=list)
    """(time, new status), in order."""
    exploit: dict[str, Any] | None = None
    """The newest ``exploit`` event: the config and the donor's checkpoint to continue with."""
    error: str | None = None

    def check(self) -> None:
        """Raise a TypeError if the journal has something else where these have to be."""
        texts = (self.trial_id, self.experiment_tag, self.directory, self.status, self.error or "")
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"trial {self.trial_id!r} has a name that is not a text")
        times = (self.time, *(when for when, _ in self.status_changes[-1:]))
        if not isinstance(self.index, int) or not all(map(is_number, times)):
            raise TypeError(f"trial {self.trial_id!r} has a number that is not a number")

    def added(self) -> dict[str, Any]:
        """The values of the ``trial`` event."""
        names = ("trial_id", "index", "config", "experiment_tag", "directory", "time")
        return {name: getattr(self, name) for name in names}


class ExperimentRecords:
    """An experiment's journal, read.

    Args:
        storage: the experiment's directory.
        number: which experiment of the directory; by default the newest.

    Raises:
        FileNotFoundError: there is no experiment.
    """

    def __init__(self, storage: Storage, number: int | None = None) -> None:
        self.storage = storage
        self.number = newest_experiment(storage) if number is None else number
        self.header: dict[str, Any] = {}
        """The ``experiment`` event."""
        self.trials: dict[str, TrialRecord] = {}
        self.found_in_runs: list[TrialRecord] = []
        """Trials that are missing in the journal and were found through their own runs."""
        self.state = "unfinished"
        self._path = storage.path(experiment_file("journal", self.number))
        journal = experiment_file("journal", self.number)
        for number, line in enumerate(read_lines(read_journal(storage, journal)), 1):
            with damage_named(f"line {number} of {self._path}"):
                self._apply(parse_line(line))
        if not self.header:
            raise FileNotFoundError(
                f"{self._path} records no experiment; "
                "the driver may have been killed as it started."
            )
        # A local journal has every line; a remote one is a copy, which may lack the newest lines.
        if not storage.is_local:
            self._find_unrecorded_trials()

    @property
    def saved_tuner(self) -> bytes | None:
        """The bytes that ``Experiment.create`` stored; None if the file is missing."""
        try:
            return self.storage.read(experiment_file("tuner", self.number))
        except FileNotFoundError:
            return None

    def run_storage(self, trial: TrialRecord) -> Storage:
        """The directory of a trial's run."""
        return self.storage.child(trial.directory)

    def read_run(self, trial: TrialRecord) -> RunRecords | None:
        """The journal of a trial's run, None if there is none yet.

        Raises:
            StorageError: the journal cannot be read, or is damaged.
        """
        with suppress(FileNotFoundError), damage_named(self._path):
            return RunRecords(self.run_storage(trial))
        return None

    def read_runs(self) -> dict[str, RunRecords | None]:
        """``read_run`` of every trial, by trial id; on remote storage, several at once."""
        runs: dict[str, RunRecords | None] = dict.fromkeys(self.trials)

        def read(trial_id: str) -> None:
            runs[trial_id] = self.read_run(self.trials[trial_id])

        self.storage.each(self.trials, read)
        return runs

    def _apply(self, record: dict[str, Any]) -> None:
        event = record.pop("event")
        if event == "experiment":
            check_version(record, self._path)
            self.header = record
        elif event == "restore":
            self.state = "unfinished"
        elif event == "end":
            self.state = record["state"]
        elif event == "trial":
            self.trials[record["trial_id"]] = TrialRecord(**record)
            self.trials[record["trial_id"]].check()
        elif event == "status":
            trial = self.trials[record["trial_id"]]
            trial.status = record["status"]
            trial.status_changes.append((record["time"], record["status"]))
            trial.error = record.get("error")
            trial.directory = record.get("directory", trial.directory)
            trial.check()
            if trial.status == "RUNNING" and trial.exploit is not None:
                # The donor's checkpoint was copied into the trial's own run before it started.
                trial.exploit["checkpoint"] = None
        elif event == "exploit":
            self.trials[record["trial_id"]].exploit = record

    def _find_unrecorded_trials(self) -> None:
        """Add the trials that started after the journal was last copied to remote storage."""
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
                self.found_in_runs.append(trial)


def final_status(trial: TrialRecord, run: RunRecords | None) -> str:
    """A trial's status when its driver ended or died.

    A run records its end before the experiment does. So the run's word counts where the driver was
    killed in between.
    """
    if trial.status in ("TERMINATED", "ERROR"):
        return trial.status
    if run is not None and run.state == "finished":
        return "TERMINATED"
    if run is not None and run.state == "failed":
        return "ERROR"
    return "PAUSED" if trial.status == "PAUSED" else "PENDING"
