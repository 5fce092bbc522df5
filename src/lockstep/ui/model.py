"""A run's journal, followed: what the pages show of the run, in a bounded amount of memory.

A light model, for a line of a table, keeps few points of each metric. A full one, of a run whose
page is open, keeps many, of each rank as well.
"""

from __future__ import annotations

import json
from typing import Any

from lockstep.config import CheckpointConfig, RunConfig
from lockstep.errors import LockstepError
from lockstep.journal import check_version, parse_line
from lockstep.metrics import flatten
from lockstep.records import damage_named, reported_metrics
from lockstep.run_layout import JOURNAL_FILE, RESOURCES_FILE
from lockstep.train.driver.best import Best, BestSoFar
from lockstep.ui.follow import Follower
from lockstep.ui.places import Place
from lockstep.ui.series import Series

__all__ = ["RunModel", "TimeSpent"]

LIGHT_POINTS = 64
FULL_POINTS = 1 << 17
RANK_POINTS = 1 << 12
SAMPLE_POINTS = 1 << 12
MAX_METRICS = 500
"""How many metrics of a run have charts: a page with more helps nobody."""
MAX_RANKS = 64
_COLUMNS = 256
"""How many columns the picture of late ranks has at most; twice as many while it is filled."""


class TimeSpent:
    """Where the time of a run went, in seconds."""

    def __init__(self) -> None:
        self.starting = 0.0
        self.data = 0.0
        self.waiting = 0.0
        """All ranks but the slowest waited for it at a report: the mean over ranks."""
        self.reporting = 0.0

    def add(self, report: dict[str, Any]) -> None:
        """Count one report."""
        seconds = float(report["time_this_iter"])
        self.reporting += seconds
        busy = report.get("busy") or [seconds]
        self.waiting += min(max(busy) - sum(busy) / len(busy), seconds)
        for waits in report.get("waits") or ():
            self.data += waits.get("data", 0.0) / len(busy)


class RunModel:
    """What is known of one run; ``follow`` learns more. Used under the library's lock."""

    def __init__(self, place: Place, *, full: bool) -> None:
        self.place = place
        self.full = full
        self.follower = Follower(place, JOURNAL_FILE)
        self.version = 0
        """Changes whenever there is something new."""
        self.run: dict[str, Any] = {}
        self.attempts: dict[int, dict[str, Any]] = {}
        self.failure: dict[str, Any] | None = None
        self.failures: list[dict[str, Any]] = []
        self.stops: list[dict[str, Any]] = []
        self.restores: list[float] = []
        self.end: dict[str, Any] | None = None
        self.checkpoints: dict[int, dict[str, Any]] = {}
        self.deleted = 0
        self.rows = 0
        self.last: dict[str, Any] = {}
        self.last_time = 0.0
        self.metrics: dict[str, Series] = {}
        self.logs: dict[str, Series] = {}
        """``train.log()`` of rank 0."""
        self.ranks: dict[str, list[Series]] = {}
        """The same metric of each rank, reported or logged; only in a full model."""
        self.late = _LateRanks()
        self.data_wait = Series(FULL_POINTS if full else LIGHT_POINTS)
        self.spent = TimeSpent()
        self.samples = _Samples(place) if full else None
        self.damage: str | None = None
        self._best: BestSoFar | None = None
        self._points = FULL_POINTS if full else LIGHT_POINTS

    @property
    def state(self) -> str:
        """How the run ended; ``"unfinished"`` if the driver died or still runs."""
        return str(self.end["state"]) if self.end else "unfinished"

    @property
    def best(self) -> Best | None:
        """The best value of the metric that the run's panel follows."""
        if self.end is not None and (kept := self.end.get("best")):
            return Best(str(kept[0]), float(kept[1]), int(kept[2]))
        return self._best.best if self._best else None

    def follow(self) -> bool:
        """Read what is new, or a part of it; whether there was anything."""
        lines = self.follower.more()
        if lines is None:
            version = self.version
            self.__init__(self.place, full=self.full)  # type: ignore[misc]
            self.version = version + 1
            lines = self.follower.more() or []
        try:
            if lines:
                self._apply(lines)
        except (LockstepError, OSError) as error:
            self.damage = str(error)
        sampled = self.samples is not None and self.samples.follow()
        if lines or sampled:
            self.version += 1
        return bool(lines) or sampled

    def _apply(self, lines: list[bytes]) -> None:
        where = self.place.storage.path(JOURNAL_FILE)
        with damage_named(where):
            for line in lines:
                # Without parse_line() for the many rows: nothing here prints what they contain.
                if line.startswith(b'{"event":"report"'):
                    self._report(json.loads(line))
                elif line.startswith(b'{"event":"log"'):
                    self._log(json.loads(line))
                else:
                    self._event(parse_line(line), where)

    def _event(self, record: dict[str, Any], where: str) -> None:
        event = record.pop("event")
        if event == "run":
            check_version(record, where)
            self.run = record
            scored = CheckpointConfig(**record["checkpoint_config"])
            self._best = BestSoFar(RunConfig(checkpoint_config=scored))
        elif event == "attempt":
            self.attempts[int(record["attempt"])] = record
            self.spent.starting += float(record.get("warmup_time", 0.0))
        elif event == "checkpoint":
            self.checkpoints[int(record["id"])] = record
        elif event == "delete":
            self.deleted += self.checkpoints.pop(record["id"], None) is not None
        elif event == "failure":
            self.failure = record
            self.failures.append(record)
        elif event == "attempt_stopped":
            self.stops.append(record)
        elif event == "restore":
            self.run = {**self.run, **record}
            self.restores.append(float(record.get("restored", 0.0)))
            self.end = self.failure = None
        elif event == "end":
            self.end = record
        elif event == "report":
            self._report(record)
        elif event == "log":
            self._log(record)

    def _report(self, report: dict[str, Any]) -> None:
        index, when = float(report["index"]), float(report["time"])
        metrics = reported_metrics(report)
        self.rows, self.last, self.last_time = int(index), metrics, when
        self._add(self.metrics, metrics, index, when)
        if self._best is not None:
            self._best.update(int(index), metrics)
        self.spent.add(report)
        if waits := report.get("data_wait"):
            self.data_wait.add(index, when, max(waits))
        if self.full:
            busy = report.get("busy") or ()
            if len(busy) > 1:
                # Ranks are answered together: who was busy longest since then has come last.
                first = min(busy)
                self.late.add(index, [seconds - first for seconds in busy])
            ranks = report["ranks"]
            if len(ranks) > 1:
                for rank, of_rank in enumerate(ranks[:MAX_RANKS]):
                    self._add_rank(rank, of_rank, index, when)

    def _log(self, batch: dict[str, Any]) -> None:
        rank = int(batch["rank"])
        for row in batch["rows"]:
            step, when, metrics = float(row["step"]), float(row["time"]), row["metrics"]
            if rank == 0:
                self._add(self.logs, metrics, step, when)
            if self.full and rank < MAX_RANKS:
                self._add_rank(rank, metrics, step, when)

    def _add(
        self, to: dict[str, Series], metrics: dict[str, Any], step: float, when: float
    ) -> None:
        for key, value in metrics.items():
            kind = type(value)
            if kind is float or kind is int:
                series = to.get(key)
                if series is None:
                    if len(to) >= MAX_METRICS:
                        continue
                    series = to[key] = Series(self._points)
                series.add(step, when, value)
            elif kind is dict:
                nested = {f"{key}/{name}": one for name, one in flatten(value).items()}
                self._add(to, nested, step, when)

    def _add_rank(self, rank: int, metrics: dict[str, Any], step: float, when: float) -> None:
        for key, value in flatten(metrics).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                ranks = self.ranks.get(key)
                if ranks is None:
                    if len(self.ranks) >= MAX_METRICS:
                        continue
                    ranks = self.ranks[key] = []
                while len(ranks) <= rank:
                    ranks.append(Series(RANK_POINTS))
                ranks[rank].add(step, when, value)


class _LateRanks:
    """How late each rank came to the reports, in columns of neighbouring reports: the mean."""

    def __init__(self) -> None:
        self.columns: list[tuple[float, float, list[float]]] = []
        """First report, last report, the sum of seconds of each rank."""
        self._width = 1

    def add(self, index: float, late: list[float]) -> None:
        """Count one report."""
        late = late[:MAX_RANKS]
        last = self.columns[-1] if self.columns else None
        if last is not None and last[1] - last[0] + 1 < self._width and len(last[2]) == len(late):
            self.columns[-1] = _joined(last, (index, index, late))
            return
        self.columns.append((index, index, list(late)))
        if len(self.columns) >= 2 * _COLUMNS:
            # A change of the number of ranks stays a border.
            columns, self.columns, self._width = self.columns, [], self._width * 2
            for column in columns:
                before = self.columns[-1] if self.columns else None
                fits = before is not None and len(before[2]) == len(column[2])
                if before is not None and fits and column[1] - before[0] < self._width:
                    self.columns[-1] = _joined(before, column)
                else:
                    self.columns.append(column)


def _joined(
    a: tuple[float, float, list[float]], b: tuple[float, float, list[float]]
) -> tuple[float, float, list[float]]:
    return a[0], b[1], [x + y for x, y in zip(a[2], b[2], strict=True)]


class _Samples:
    """``resources.jsonl``, followed: each rank's memory and CPU, each GPU's load and memory."""

    def __init__(self, place: Place) -> None:
        self._follower = Follower(place, RESOURCES_FILE)
        self.memory: list[Series] = []
        self.cpu: list[Series] = []
        self.gpu: list[Series] = []
        self.gpu_memory: list[Series] = []
        self.gpu_total: list[float] = []
        self._before: dict[str, Any] | None = None

    def follow(self) -> bool:
        """Read what is new; whether there was anything."""
        lines = self._follower.more()
        for line in lines or ():
            with damage_named(RESOURCES_FILE):
                self._add(parse_line(line))
        return bool(lines)

    def _add(self, sample: dict[str, Any]) -> None:
        when = float(sample["time"])
        for rank, memory in enumerate(sample["memory"][:MAX_RANKS]):
            if memory is not None:
                _at(self.memory, rank).add(when, when, float(memory))
        before, self._before = self._before, sample
        if before is not None and before["attempt"] == sample["attempt"]:
            seconds = max(when - float(before["time"]), 1e-9)
            pairs = zip(before["cpu"], sample["cpu"], strict=True)
            for rank, (old, new) in enumerate(pairs):
                if old is not None and new is not None and rank < MAX_RANKS:
                    _at(self.cpu, rank).add(when, when, 100 * (new - old) / seconds)
        for index, (busy, used, total) in enumerate(sample.get("gpu", [])[:MAX_RANKS]):
            _at(self.gpu, index).add(when, when, float(busy))
            _at(self.gpu_memory, index).add(when, when, float(used))
            self.gpu_total[index:] = [float(total)]


def _at(series: list[Series], index: int) -> Series:
    while len(series) <= index:
        series.append(Series(SAMPLE_POINTS))
    return series[index]
