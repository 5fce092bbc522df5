"""A run's journal, followed: what the pages show of the run, in a bounded amount of memory.

A light model, for a line of a table, keeps few points of each metric. A full one, of a run whose
page is open, keeps many, of each rank as well.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from lockstep.config import CheckpointConfig, RunConfig
from lockstep.errors import LockstepError
from lockstep.journal import check_version, parse_line
from lockstep.journal.records import damage_named, reported_metrics
from lockstep.ledger.followed import FollowedLedger
from lockstep.metrics import flatten
from lockstep.run_layout import JOURNAL_FILE, RESOURCES_FILE
from lockstep.train.driver.best import Best, BestSoFar
from lockstep.ui.follow import Follower
from lockstep.ui.places import Place
from lockstep.ui.series import Series, SeriesSet

__all__ = ["Parent", "RunModel"]

LIGHT_POINTS = 64
FULL_POINTS = 1 << 17
RANK_POINTS = 1 << 12
SAMPLE_POINTS = 1 << 12
MAX_METRICS = 500
"""How many metrics of a run have charts: a page with more helps nobody."""
MAX_RANKS = 64
_COLUMNS = 256
"""How many columns the picture of late ranks has at most; twice as many while it is filled."""
# How many attempts, failures and checkpoints are kept: the newest. All are counted.
_LIGHT_KEPT = 4
_FULL_KEPT = 500
# json.loads() would look at the encoding of each of a million lines.
_decode = json.JSONDecoder().decode


class Parent(NamedTuple):
    """Where a fork began: which run, at which step, after how many of that run's reports."""

    trial_id: str
    step: float
    reports: float


class RunModel:
    """What is known of one run; ``follow`` learns more. Used under the library's lock.

    Args:
        place: the run's directory.
        full: of a run whose page is open.
        metric: of a light model: only this metric's points are kept.
    """

    def __init__(self, place: Place, *, full: bool, metric: str | None = None) -> None:
        self.place = place
        self.full = full
        self.version = 0
        """Changes whenever there is something new."""
        self._only = metric
        self._forget()

    def _forget(self) -> None:
        """Know nothing, as before the first look."""
        self.follower = Follower(self.place, JOURNAL_FILE)
        self.run: dict[str, Any] = {}
        self.parent: Parent | None = None
        self.attempts: dict[int, dict[str, Any]] = {}
        """The newest ones. Only the last of them has its workers; the others, their number."""
        self.attempt_count = 0
        self.failure: dict[str, Any] | None = None
        self.failures: list[dict[str, Any]] = []
        self.failure_count = 0
        self.stops: list[dict[str, Any]] = []
        self.restores: list[float] = []
        self.end: dict[str, Any] | None = None
        self.checkpoints: dict[int, dict[str, Any]] = {}
        self.saved = self.deleted = 0
        self.rows = 0
        self.last: dict[str, Any] = {}
        self.last_time = 0.0
        self.metrics: dict[str, Series] = {}
        self.logs: dict[str, Series] = {}
        """``train.log()`` of rank 0."""
        self.ranks: dict[str, list[Series]] = {}
        """The same metric of each rank, reported or logged; only in a full model."""
        self.late = _LateRanks()
        self.data_wait = Series(FULL_POINTS // 8 if self.full else LIGHT_POINTS)
        self.samples = _Samples(self.place) if self.full else None
        self.damage: str | None = None
        self._ledger: FollowedLedger | None = None
        self._best: BestSoFar | None = None
        self._series = (
            SeriesSet(FULL_POINTS, 2 * FULL_POINTS, 2 * MAX_METRICS)
            if self.full
            else SeriesSet(LIGHT_POINTS, 16 * LIGHT_POINTS, 32)
        )
        self._rank_series = SeriesSet(RANK_POINTS, 2 * FULL_POINTS, 4096)

    @property
    def forked_at(self) -> float:
        """The step at which a fork began, which its first report follows; 0 for other runs."""
        return self.parent.step if self.parent else 0.0

    @property
    def state(self) -> str:
        """How the run ended; ``"unfinished"`` if the driver died or still runs."""
        return str(self.end["state"]) if self.end else "unfinished"

    @property
    def best(self) -> Best | None:
        """The best value of the metric that the run's panel follows."""
        if self.end is not None and (kept := self.end.get("best")):
            best: Best = kept
            return best
        return self._best.best if self._best else None

    def spent(self) -> dict[str, float]:
        """Where the time went: the seconds of wall time in each account of the ledger."""
        if self._ledger is None:
            return {}
        kept = None
        if self.state == "failed":
            newest = max(self.checkpoints, default=None)
            kept = 0 if newest is None else int(self.checkpoints[newest]["iteration"])
        shares, wall_s = self._ledger.shares(kept)
        return {account: share * wall_s for account, share in shares.items() if share > 0}

    def follow(self) -> bool:
        """Read what is new, or a part of it; whether there was anything."""
        lines = self.follower.more()
        if lines is None:
            self._forget()
            self.version += 1
            lines = self.follower.more() or []
        before, news = self.damage, bool(lines)
        try:
            self._apply(lines)
            if self.samples is not None:
                news |= self.samples.follow()
        except (LockstepError, OSError) as error:
            self.damage = str(error)
        self.damage = self.damage or self.follower.damage
        if not self.run:
            # Nothing to show instead. What was read already stays better than a sentence.
            self.damage = self.damage or self.follower.problem
        news |= self.damage != before
        self.version += news
        return news

    def _apply(self, lines: list[bytes]) -> None:
        where = JOURNAL_FILE  # in a directory that the page shows
        with damage_named(where):
            for line in lines:
                # Without parse_line() for the many rows: nothing here prints what they contain.
                if line.startswith(b'{"event":"report"'):
                    report = _decode(line.decode())
                    self._report(report)
                    self._account("report", report)
                elif line.startswith(b'{"event":"log"'):
                    self._log(_decode(line.decode()))
                else:
                    self._event(parse_line(line), where)

    def _event(self, record: dict[str, Any], where: str) -> None:
        event = record.pop("event")
        kept = _FULL_KEPT if self.full else _LIGHT_KEPT
        if event == "run":
            check_version(record, where)
            scored = CheckpointConfig(**record["checkpoint_config"])
            self._best = BestSoFar(RunConfig(checkpoint_config=scored))
            if self._only is None:  # nobody sees the accounts of a trial without its own page
                self._ledger = FollowedLedger(float(record["time"]))
            self.run = record
            if parent := record.get("parent"):
                step, reports = _place(parent["step"], parent["reports"])
                self.parent = Parent(str(parent["trial_id"]), step, reports)
        elif event == "attempt":
            record["workers"] = [
                {
                    **worker,
                    "rank": int(worker["rank"]),
                    "pid": int(worker["pid"]),
                    "hostname": str(worker["hostname"]),
                }
                for worker in record["workers"]
            ]
            for earlier in self.attempts.values():
                earlier["size"] = earlier.get("size") or len(earlier.pop("workers"))
            self.attempts[int(record["attempt"])] = record
            self.attempt_count += 1
            _drop_first(self.attempts, kept)
        elif event == "checkpoint":
            record["name"] = str(record["name"])
            record["uploaded"] = bool(record.get("uploaded", True))
            self.checkpoints[int(record["id"])] = record
            self.saved += 1
            _drop_first(self.checkpoints, kept)
        elif event == "delete":
            self.checkpoints.pop(record["id"], None)
            self.deleted += 1
        elif event == "failure":
            record["errors"] = [
                {"rank": int(one["rank"]), "error": dict(one["error"])} for one in record["errors"]
            ]
            self.failure = record
            self.failures = [*self.failures[1 - kept :], record]
            self.failure_count += 1
        elif event == "attempt_stopped":
            self.stops = [*self.stops[1 - kept :], record]
        elif event == "restore":
            self.run = {**self.run, **record}
            self.restores = [*self.restores[1 - kept :], float(record["restored"])]
            self.end = self.failure = None
        elif event == "end":
            ended = {**record, "state": str(record["state"]), "time": float(record["time"])}
            if best := record.get("best"):
                ended["best"] = Best(str(best[0]), float(best[1]), int(best[2]))
            self.end = ended
        elif event == "report":
            self._report(record)
        elif event == "log":
            self._log(record)
        self._account(event, record)

    def _account(self, event: str, record: dict[str, Any]) -> None:
        if self._ledger is not None:
            try:
                if event == "report":
                    self._ledger.report(record)
                else:
                    self._ledger.event(event, record)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                self._ledger = None  # an account that is not exact would be no account

    def _report(self, report: dict[str, Any]) -> None:
        index, when = _place(report["index"], report["time"])
        step = index + self.forked_at
        metrics = reported_metrics(report)
        self._add(self.metrics, metrics, step, when)
        self.rows, self.last, self.last_time = int(index), metrics, when
        if self._best is not None:
            self._best.update(int(index), metrics)
        if waits := report.get("data_wait"):
            self.data_wait.add(step, when, float(max(waits)))
        if self.full:
            busy = report.get("busy") or ()
            if len(busy) > 1:
                # Ranks are answered together: who was busy longest since then has come last.
                first, _ = _place(min(busy), max(busy))
                self.late.add(index, [seconds - first for seconds in busy])
            ranks = report["ranks"]
            if len(ranks) > 1:
                for rank, of_rank in enumerate(ranks[:MAX_RANKS]):
                    self._add_rank(rank, of_rank, step, when)

    def _log(self, batch: dict[str, Any]) -> None:
        rank = int(batch["rank"])
        for row in batch["rows"]:
            (step, when), metrics = _place(row["step"], row["time"]), row["metrics"]
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
                    if len(to) >= MAX_METRICS or (self._only is not None and key != self._only):
                        continue
                    series = self._series.new()
                    if series is None:
                        continue
                    to[key] = series
                series.add(step, when, value)
            elif kind is dict:
                nested = {f"{key}/{name}": one for name, one in flatten(value).items()}
                self._add(to, nested, step, when)

    def _add_rank(self, rank: int, metrics: dict[str, Any], step: float, when: float) -> None:
        for key, value in flatten(metrics).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                ranks = self.ranks.get(key) or []
                while len(ranks) <= rank:
                    series = self._rank_series.new()
                    if series is None:
                        break  # no room for another one; other metrics may have theirs
                    ranks.append(series)
                    self.ranks[key] = ranks
                else:
                    ranks[rank].add(step, when, value)


def _place(x: Any, time: Any) -> tuple[float, float]:
    """Where a point is in a chart."""
    x, time = float(x), float(time)
    if not math.isfinite(x + time):
        raise ValueError(f"a step or a time is {x if math.isfinite(time) else time}")
    return x, time


def _drop_first(records: dict[int, Any], kept: int) -> None:
    while len(records) > kept:
        del records[next(iter(records))]


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
        self._place = place
        self._forget()

    def _forget(self) -> None:
        self._follower = Follower(self._place, RESOURCES_FILE)
        self.memory: dict[str, Series] = {}
        """By rank, as is ``cpu``."""
        self.cpu: dict[str, Series] = {}
        self.gpu: dict[str, Series] = {}
        """By machine and index, ``node-a:0``, as is ``gpu_memory``."""
        self.gpu_memory: dict[str, Series] = {}
        self._before: dict[int, tuple[int, float, float]] = {}
        self._series = SeriesSet(SAMPLE_POINTS, FULL_POINTS, 4 * MAX_RANKS)

    def follow(self) -> bool:
        """Read what is new; whether there was anything."""
        lines = self._follower.more()
        if replaced := lines is None:
            self._forget()
            lines = self._follower.more()
        for line in lines or ():
            with damage_named(RESOURCES_FILE):
                self._add(parse_line(line))
        return replaced or bool(lines)

    def _add(self, sample: dict[str, Any]) -> None:
        when, _ = _place(sample["time"], 0)
        attempt = int(sample["attempt"])
        of_ranks = zip(sample["ranks"], sample["cpu"], sample["memory"], strict=True)
        for rank, cpu, memory in of_ranks:
            if not isinstance(rank, int) or not 0 <= rank < MAX_RANKS:
                continue
            self._point(self.memory, str(rank), when, float(memory))
            before = self._before.get(rank)
            if before is not None and before[0] == attempt:
                seconds = max(when - before[1], 1e-9)
                self._point(self.cpu, str(rank), when, 100 * (cpu - before[2]) / seconds)
            self._before[rank] = attempt, when, float(cpu)
        host = str(sample["host"])[:64]
        for index, (busy, used, _) in enumerate(sample.get("gpu", [])[:MAX_RANKS]):
            if busy is not None:
                self._point(self.gpu, f"{host}:{index}", when, float(busy))
            if used is not None:
                self._point(self.gpu_memory, f"{host}:{index}", when, float(used))

    def _point(self, of: dict[str, Series], name: str, when: float, value: float) -> None:
        if name not in of:
            made = self._series.new() if len(of) < MAX_RANKS else None
            if made is None:
                return
            of[name] = made
        of[name].add(when, when, value)
