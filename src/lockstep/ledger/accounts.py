"""The accounts, and the ledger that a journal adds up to.

Between two reports a rank is busy: from the answer to the one until its call of the other. Ranks
are answered together, so the rank that was busy longest has arrived last, and the others have
waited for it:

    rank 0   |── compute ──┬ data ┬── compute ──┊····· ranks ·····┊ checkpoint or reporting |
    rank 1   |── compute ─────────────────────────────────────────┊ checkpoint or reporting |
             answer                                          the last rank           next answer

Each rank measures its own ``busy`` seconds, so that clocks of several machines need not agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lockstep.journal.records import RunRecords

__all__ = [
    "ACCOUNTS",
    "AttemptTimes",
    "Goodput",
    "Interval",
    "Ledger",
    "interval_after",
    "interval_before",
    "overhead_after",
    "read_ledger",
]

ACCOUNTS = {
    "compute": "the training function computes",
    "data": "the training function waits for a batch",
    "ranks": "a rank waits for the other ranks",
    "communication": "all ranks are in a collective",
    "checkpoint": "a checkpoint is written, and ranks wait for it",
    "reporting": "a report is recorded and answered",
    "starting": "workers start, until their function is called",
    "restarting": "the same in later attempts, with the wait before",
    "lost": "work of a failed attempt that was not in a checkpoint",
    "idle": "the function has returned, and the run has not ended",
}
"""Every account, and what a rank does in the time that it holds."""

_SYNCHRONISED = ("ranks", "communication")
"""Of ``waits``: time in which ranks wait for each other between two reports."""


class Goodput(Mapping[str, float]):
    """The share of each account in a run's time: they add up to 1. ``compute`` is the goodput.

    Attributes:
        seconds: the same in seconds, of all ranks together.
        ranks: the shares of each rank.
        attempts: of a whole run: the shares of each attempt.
        wall_s: the wall time.
    """

    def __init__(
        self,
        ranks: Sequence[Mapping[str, float]],
        wall_s: float,
        attempts: Sequence[Goodput] = (),
        *,
        _of_rank: bool = False,
    ) -> None:
        self.seconds = {name: sum(rank[name] for rank in ranks) for name in ACCOUNTS}
        total = sum(self.seconds.values())
        self._shares = {name: s / total if total else 0.0 for name, s in self.seconds.items()}
        self.wall_s = wall_s
        self.attempts = tuple(attempts)
        self.ranks = () if _of_rank else tuple(Goodput([r], wall_s, _of_rank=True) for r in ranks)

    def __getitem__(self, account: str) -> float:
        return self._shares[account]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shares)

    def __len__(self) -> int:
        return len(self._shares)

    def __repr__(self) -> str:
        shown = sorted(self._shares.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {share:.1%}" for name, share in shown if share >= 0.0005)
        return f"Goodput({parts or 'nothing'} of {self.wall_s:.1f} s)"


@dataclass(frozen=True, slots=True)
class Interval:
    """The time between two reports of an attempt, or after the last one.

    Attributes:
        index: the number of the report at its end; None after the last report.
        began: seconds from the launch of the attempt's function to the beginning of the interval.
        seconds: how long it was, as the driver has measured it.
        busy: by rank, the seconds that the function ran.
        waits: by rank, what of these was no computing.
        overhead: the account of the time in which no rank's function ran.
        lost: a later attempt did this work again.
        saves: the report at its end has a checkpoint.
    """

    index: int | None
    began: float
    seconds: float
    busy: tuple[float, ...]
    waits: tuple[Mapping[str, float], ...]
    overhead: str
    lost: bool
    saves: bool = False

    def own(self) -> list[float]:
        """By rank, the busy seconds in which it did not wait for other ranks."""
        pairs = zip(self.busy, self.waits, strict=True)
        return [busy - min(_synchronised(waits), busy) for busy, waits in pairs]

    def late(self) -> list[float]:
        """By rank, the seconds that it arrived after the first rank."""
        first = min(self.busy)
        return [busy - first for busy in self.busy]

    def split(self) -> list[dict[str, float]]:
        """By rank, the seconds in each account. Each rank's add up to the interval's."""
        if self.lost:
            return [{**_ZERO, "lost": self.seconds} for _ in self.busy]
        last = max(self.busy)
        # The driver's clock decides. A rank's may run a little faster.
        scale = self.seconds / last if last > self.seconds else 1.0
        shared = min(map(_synchronised, self.waits))
        split = []
        for own, busy, waits in zip(self.own(), self.busy, self.waits, strict=True):
            data = min(waits.get("data", 0.0), own)
            saving = min(waits.get("checkpoint", 0.0), own - data)
            together = min(shared, busy - own)
            seconds = {
                **_ZERO,
                "compute": (own - data - saving) * scale,
                "data": data * scale,
                "checkpoint": saving * scale,
                "communication": together * scale,
                "ranks": (busy - own - together) * scale,
            }
            # At a report a rank waits for those that come later. After the last one it is done.
            seconds["idle" if self.index is None else "ranks"] += (last - busy) * scale
            seconds[self.overhead] += self.seconds - last * scale
            split.append(seconds)
        return split

    def total(self) -> dict[str, float]:
        """The seconds in each account, of all ranks together; accounts without any are left out."""
        size = len(self.busy)
        if self.lost:
            return {"lost": self.seconds * size}
        if any(self.waits):
            split = self.split()
            return {name: sum(rank[name] for rank in split) for name in ACCOUNTS}
        # Most reports: the same sums without a dict for each rank.
        last = max(self.busy)
        scale = self.seconds / last if last > self.seconds else 1.0
        computed = sum(self.busy) * scale
        waiting = "idle" if self.index is None else "ranks"
        total = {"compute": computed, waiting: last * scale * size - computed}
        rest = (self.seconds - last * scale) * size
        total[self.overhead] = total.get(self.overhead, 0.0) + rest
        return total


@dataclass(slots=True)
class AttemptTimes:
    """One attempt: when it was, and what its ranks did in that time.

    Attributes:
        number: the attempt's.
        size: how many ranks it has.
        hosts: by rank, the name of its machine.
        began, launched, ended: in seconds since the epoch: when its start was decided, when its
            function was launched, when all its processes were gone (so far: its last report).
        intervals: the time since the launch.
        rest: account → seconds after the last interval, the same for every rank.
        first: it is the first attempt of the run.
        checkpoints: how many of its reports had one.
        failure: why it failed, in one sentence.
    """

    number: int
    size: int
    hosts: list[str]
    began: float
    launched: float
    ended: float
    first: bool
    intervals: list[Interval] = field(default_factory=list)
    rest: dict[str, float] = field(default_factory=dict)
    checkpoints: int = 0
    failure: str | None = None

    @property
    def wall_s(self) -> float:
        """Its wall time, with its start."""
        return self.ended - self.began

    def by_rank(self) -> list[dict[str, float]]:
        """By rank, the seconds in each account."""
        start = "starting" if self.first else "restarting"
        ranks = [{**_ZERO, **self.rest} for _ in range(self.size)]
        for rank in ranks:
            rank[start] += self.launched - self.began
        for interval in self.intervals:
            for rank, seconds in zip(ranks, interval.split(), strict=True):
                for account, spent in seconds.items():
                    rank[account] += spent
        return ranks


class Ledger:
    """A run's time, attempt by attempt."""

    def __init__(self, attempts: Sequence[AttemptTimes]) -> None:
        self.attempts = list(attempts)

    @property
    def wall_s(self) -> float:
        """The wall time in which a driver worked at the run."""
        return sum(attempt.wall_s for attempt in self.attempts)

    @cached_property
    def goodput(self) -> Goodput:
        """The shares of the accounts, of the whole run and of each attempt."""
        by_rank = [attempt.by_rank() for attempt in self.attempts]
        size = max(map(len, by_rank), default=0)
        ranks = [dict(_ZERO) for _ in range(size)]
        for attempt in by_rank:
            for rank, seconds in zip(ranks, attempt, strict=False):
                for account, spent in seconds.items():
                    rank[account] += spent
        attempts = [
            Goodput(seconds, attempt.wall_s)
            for seconds, attempt in zip(by_rank, self.attempts, strict=True)
        ]
        return Goodput(ranks, self.wall_s, attempts)

    def by_report(self) -> dict[int, float]:
        """Each report's number → the share of the time before it in which ranks computed."""
        shares = {}
        for interval in self.intervals():
            if interval.index is not None:
                computed = sum(seconds["compute"] for seconds in interval.split())
                total = interval.seconds * len(interval.busy)
                shares[interval.index] = computed / total if total else 0.0
        return shares

    def intervals(self) -> Iterator[Interval]:
        """Every interval of every attempt."""
        for attempt in self.attempts:
            yield from attempt.intervals


def read_ledger(records: RunRecords, parsed: Iterable[dict[str, Any]] | None = None) -> Ledger:
    """The ledger of a run, from what its journal holds.

    ``parsed``: what ``records.reports()`` returns, where the caller needs that, too.
    """
    reports: dict[int, list[dict[str, Any]]] = {}
    for report in records.reports() if parsed is None else parsed:
        reports.setdefault(report["attempt"], []).append(report)
    attempts: list[AttemptTimes] = []
    boundary = float(records.run["time"])
    last_of: dict[int, dict[str, Any]] = {}
    current: AttemptTimes | None = None
    for event, record in records.timeline:
        if event == "restore":
            # Between two drivers nobody worked at the run: that time is in no account.
            boundary, current = float(record["restored"]), None
        elif event == "attempt":
            rows = reports.get(record["attempt"], [])
            launched = float(record["time"])
            current = AttemptTimes(
                number=record["attempt"],
                size=len(record["workers"]),
                hosts=[str(worker["hostname"]) for worker in record["workers"]],
                began=min(boundary, launched),
                launched=launched,
                ended=launched + (rows[-1]["time_since_start"] if rows else 0.0),
                first=not attempts,
                checkpoints=sum(row["checkpoint"] is not None for row in rows),
            )
            attempts.append(current)
            boundary = current.ended
        else:
            now = float(record["time"])
            number = record.get("attempt", None if current is None else current.number)
            of_current = current is not None and current.number == number
            if not of_current and now > boundary:
                # An attempt whose workers never came up: all of its time went into its start.
                size = attempts[-1].size if attempts else 1
                number = number or (attempts[-1].number + 1 if attempts else 1)
                current = AttemptTimes(number, size, [""] * size, boundary, now, now, not attempts)
                attempts.append(current)
            if current is None or (event != "end" and current.number in last_of):
                continue
            # The record of a failure, or of a notice, says more than the end that may follow it.
            last_of.setdefault(current.number, record)
            current.ended = boundary = max(now, current.ended)
            if current.number not in records.attempts:
                current.launched = current.ended
            if event == "failure":
                current.failure = str(record["message"])
    starts = {number: record["iteration"] for number, record in records.attempts.items()}
    for position, attempt in enumerate(attempts):
        rows = reports.get(attempt.number, [])
        later = (starts[one.number] for one in attempts[position + 1 :] if one.number in starts)
        kept = next(later, None)
        if kept is None:
            kept = _kept_by_failed_run(records)
        lost = [kept is not None and row["iteration"] > kept for row in rows]
        _fill(attempt, rows, lost, last_of.get(attempt.number))
    return Ledger(attempts)


def _kept_by_failed_run(records: RunRecords) -> int | None:
    """The iteration that a run which failed for good has in a checkpoint; None: it has not."""
    if records.state != "failed":
        return None
    newest = max(records.checkpoints.values(), key=lambda one: one.id, default=None)
    return 0 if newest is None else newest.iteration


def _fill(
    attempt: AttemptTimes,
    rows: list[dict[str, Any]],
    lost: list[bool],
    last: dict[str, Any] | None,
) -> None:
    """Add the intervals of an attempt, and what is left of its time after them."""
    before, overhead = 0.0, "starting" if attempt.first else "restarting"
    for row, is_lost in zip(rows, lost, strict=True):
        interval = interval_before(row, before, overhead, lost=is_lost)
        attempt.intervals.append(interval)
        before, overhead = before + interval.seconds, overhead_after(row)
    end = attempt.ended - attempt.launched
    if last is None:
        return
    after = interval_after(last, before, end, overhead)
    if after is None:
        # The function was ended in the middle of something.
        attempt.rest = {"lost": end - before}
    else:
        attempt.intervals.append(after)
        attempt.rest = {"idle": end - before - after.seconds}


def interval_before(
    row: Mapping[str, Any], before: float, overhead: str, *, lost: bool = False
) -> Interval:
    """The interval that a report ends.

    Args:
        row: the report.
        before: seconds from the launch to the report before it.
        overhead: the account of the time in which no rank's function ran.
        lost: a later attempt did this work again.
    """
    busy = tuple(row["busy"])
    waits = tuple(row["waits"]) if "waits" in row else ({},) * len(busy)
    # Its part before the row is recorded; ranks also wait for the publish after it.
    saved = row["checkpoint"] is not None
    account = "checkpoint" if saved and overhead == "reporting" else overhead
    seconds = float(row["time_since_start"]) - before
    return Interval(row["index"], before, seconds, busy, waits, account, lost, saved)


def overhead_after(row: Mapping[str, Any]) -> str:
    """The account of the time after a report in which no rank's function runs."""
    return "reporting" if row["checkpoint"] is None else "checkpoint"


def interval_after(
    last: Mapping[str, Any], before: float, end: float, overhead: str
) -> Interval | None:
    """The interval between the last report and the return of the function; None: it did not return.

    Args:
        last: the record that ends the attempt.
        before: seconds from the launch to the last report.
        end: seconds from the launch to the end of the attempt.
        overhead: the account of the time in which no rank's function ran.
    """
    returned = last.get("returned_after")
    if returned is None:
        return None
    seconds = max(min(float(returned), end) - before, 0.0)
    account = "idle" if overhead == "reporting" else overhead
    return Interval(
        None, before, seconds, tuple(last["busy"]), tuple(last["waits"]), account, False
    )


def _synchronised(waits: Mapping[str, float]) -> float:
    return sum(waits.get(account, 0.0) for account in _SYNCHRONISED)


_ZERO = dict.fromkeys(ACCOUNTS, 0.0)
