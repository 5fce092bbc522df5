"""The same run without one of its costs, replayed from the times that its ranks have measured.

At each report the run waits for the rank that was busy longest. Without a cost, the ranks are busy
for less, another one may be the last, and the report comes earlier by the difference.
"""

from __future__ import annotations

from typing import NamedTuple

from lockstep.ledger.accounts import AttemptTimes, Interval, Ledger

__all__ = [
    "Straggler",
    "find_straggler",
    "saved_by_fewer_checkpoints",
    "saved_without_data_waits",
    "saved_without_failures",
    "saved_without_rank",
]


def saved_without_rank(ledger: Ledger, rank: int) -> float:
    """Wall seconds less if ``rank`` were never behind the slowest of the others."""
    return sum(_lead(one, rank) for one in ledger.intervals() if len(one.busy) > rank)


def saved_without_data_waits(ledger: Ledger) -> float:
    """Wall seconds less if every batch were there when a rank asks for it."""
    saved = 0.0
    for interval in ledger.intervals():
        own = interval.own()
        waits = (wait.get("data", 0.0) for wait in interval.waits)
        without = [max(mine - wait, 0.0) for mine, wait in zip(own, waits, strict=True)]
        saved += max(own) - max(without)
    return saved


def saved_by_fewer_checkpoints(ledger: Ledger, share: float = 0.5) -> float:
    """Wall seconds less with only this ``share`` of the checkpoints, without a failure."""
    saved = 0.0
    for interval in ledger.intervals():
        own = interval.own()
        waits = (wait.get("checkpoint", 0.0) for wait in interval.waits)
        without = [mine - min(wait, mine) for mine, wait in zip(own, waits, strict=True)]
        saved += max(own) - max(without)
        if interval.overhead == "checkpoint":
            saved += max(interval.seconds - max(interval.busy), 0.0)
    return saved * (1 - share)


def saved_without_failures(ledger: Ledger) -> float:
    """Wall seconds less if no attempt had failed."""
    goodputs = ledger.goodput.attempts
    return sum((one["lost"] + one["restarting"]) * one.wall_s for one in goodputs)


class Straggler(NamedTuple):
    """The rank that the others wait for most.

    Attributes:
        rank: which one.
        host: its machine, in the last attempt.
        last: at which share of the reports it arrives last.
        late_s: how many seconds after the next rank it arrives then, on average.
        saved_s: wall seconds less if it were as fast as the slowest of the others.
        slower_s: how much longer than the others it is busy between two reports, on average.
        data_s: what of that it waits for data.
        saving: which share of its delays is before reports with a checkpoint.
        always_saves: every report has one.
    """

    rank: int
    host: str
    last: float
    late_s: float
    saved_s: float
    slower_s: float
    data_s: float
    saving: float
    always_saves: bool


def find_straggler(ledger: Ledger) -> Straggler | None:
    """The rank that delays the run most; None in a run of one rank."""
    attempts = [attempt for attempt in ledger.attempts if attempt.size > 1 and attempt.intervals]
    if not attempts:
        return None
    size = max(attempt.size for attempt in attempts)
    rank = max(range(size), key=lambda rank: saved_without_rank(ledger, rank))
    shared = [one for attempt in attempts for one in _reports(attempt) if rank < len(one.busy)]
    delays = [(lead, one.saves) for one in shared if (lead := _lead(one, rank)) > 0]
    leads = [lead for lead, _ in delays]
    excess = [_excess(one, rank) for one in shared]
    return Straggler(
        rank,
        next(a.hosts[rank] for a in reversed(attempts) if rank < a.size),
        len(leads) / len(shared) if shared else 0.0,
        sum(leads) / len(leads) if leads else 0.0,
        saved_without_rank(ledger, rank),
        sum(own for own, _ in excess) / len(excess) if excess else 0.0,
        sum(data for _, data in excess) / len(excess) if excess else 0.0,
        sum(lead for lead, saves in delays if saves) / sum(leads) if leads else 0.0,
        all(one.saves for one in shared),
    )


def _reports(attempt: AttemptTimes) -> list[Interval]:
    return [interval for interval in attempt.intervals if interval.index is not None]


def _lead(interval: Interval, rank: int) -> float:
    """How long after all others a rank is done; 0 if another one is the last."""
    own = interval.own()
    mine = own.pop(rank)
    return max(mine - max(own), 0.0) if own else 0.0


def _excess(interval: Interval, rank: int) -> tuple[float, float]:
    """How much longer than the mean of the others a rank was busy, and waited for data."""
    own = interval.own()
    data = [wait.get("data", 0.0) for wait in interval.waits]
    mine, waited = own.pop(rank), data.pop(rank)
    return mine - sum(own) / len(own), waited - sum(data) / len(data)
