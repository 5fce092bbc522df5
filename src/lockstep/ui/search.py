"""An experiment's journal, followed: its trials, and light models of their runs."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from lockstep.errors import LockstepError
from lockstep.journal import check_version, parse_line
from lockstep.journal.records import damage_named
from lockstep.metrics import first_of, flatten, look_up
from lockstep.ui.follow import Follower
from lockstep.ui.model import RunModel
from lockstep.ui.places import Place

__all__ = ["SearchModel", "TrialModel"]


class TrialModel:
    """One trial: the experiment's lines about it, and its run."""

    __slots__ = (
        "by", "config", "directory", "ended", "error", "index", "model", "started", "status",
        "trial_id", "version",
    )  # fmt: skip

    def __init__(self, record: dict[str, Any]) -> None:
        self.trial_id = str(record["trial_id"])
        self.index = int(record["index"])
        self.config: dict[str, Any] = {}
        config = record["config"]
        if isinstance(config, dict):
            self.config = flatten(config)
        self.directory = _name(record["directory"])
        self.started: float | None = None
        self.ended: float | None = None
        self.status = "PENDING"
        self.error: str | None = None
        self.by: str | None = None
        self.model: RunModel | None = None
        self.version = 0


class SearchModel:
    """What is known of one experiment; ``follow`` learns more. Used under the library's lock."""

    def __init__(self, place: Place, journal: str) -> None:
        self.place = place
        self.journal = journal
        self.version = 0
        self._forget()

    def _forget(self) -> None:
        """Know nothing, as before the first look."""
        self.follower = Follower(self.place, self.journal)
        self.header: dict[str, Any] = {}
        self.trials: dict[str, TrialModel] = {}
        self.by_directory: dict[str, TrialModel] = {}
        self.state = "unfinished"
        self.ended: float | None = None
        self.damage: str | None = None

    @property
    def metric(self) -> str | None:
        """What is searched for."""
        return first_of(self.header.get("metric"))

    @property
    def mode(self) -> str | None:
        """``"min"`` or ``"max"``."""
        return first_of(self.header.get("mode"))

    def follow(self) -> bool:
        """Read what is new, or a part of it; whether there was anything."""
        lines = self.follower.more()
        if lines is None:
            self._forget()
            self.version += 1
            lines = self.follower.more() or []
        problem = self.follower.damage or (None if self.header else self.follower.problem)
        if not lines and (problem is None or self.damage is not None):
            return False
        self.damage = self.damage or problem
        self.version += 1
        where = self.journal
        try:
            for line in lines:
                with damage_named(where):
                    self._apply(parse_line(line), where)
        except LockstepError as error:
            self.damage = str(error)
        return True

    def changed(self, trial: TrialModel) -> None:
        """A trial has news."""
        self.version += 1
        trial.version = self.version

    def score(self, trial: TrialModel) -> float | None:
        """The searched metric in the trial's last report."""
        if trial.model is None or self.metric is None:
            return None
        value = look_up(trial.model.last, self.metric)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return None
        with suppress(OverflowError):
            return float(value) if math.isfinite(value) else None
        return None

    def best(self) -> TrialModel | None:
        """The trial with the best score."""
        scored = [
            (score, trial)
            for trial in self.trials.values()
            if (score := self.score(trial)) is not None
        ]
        if not scored:
            return None
        pick = max if self.mode == "max" else min
        return pick(scored, key=lambda pair: pair[0])[1]

    def _apply(self, record: dict[str, Any], where: str) -> None:
        event = record["event"]
        if event == "experiment":
            check_version(record, where)
            for name in ("metric", "mode"):
                if (given := first_of(record.get(name))) is not None:
                    record[name] = str(given)
            self.header = record
        elif event == "restore":
            self.state, self.ended = "unfinished", None
        elif event == "end":
            self.state, self.ended = str(record["state"]), float(record["time"])
        elif event == "trial":
            trial = TrialModel(record)
            self.trials[trial.trial_id] = self.by_directory[trial.directory] = trial
            trial.version = self.version
        elif event == "status":
            trial = self.trials[record["trial_id"]]
            trial.status = str(record["status"])
            trial.error = None if record.get("error") is None else str(record["error"])
            trial.by = None if record.get("by") is None else str(record["by"])
            if (directory := record.get("directory")) is not None:
                trial.directory = _name(directory)
                self.by_directory[trial.directory] = trial
            if trial.status == "RUNNING" and trial.started is None:
                trial.started = float(record["time"])
            elif trial.status in ("TERMINATED", "ERROR"):
                trial.ended = float(record["time"])
            trial.version = self.version


def _name(directory: Any) -> str:
    """The name of a trial's directory, which lies in its experiment's."""
    if not isinstance(directory, str) or directory in ("", ".", "..") or {"/", "\0"} & {*directory}:
        raise ValueError(f"{directory!r} is not the name of a trial's directory")
    return directory
