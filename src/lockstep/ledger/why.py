"""The sentences of ``lockstep why``: what cost the most time, with the evidence and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from lockstep.ledger.accounts import AttemptTimes, Goodput, Ledger
from lockstep.ledger.live import OFTEN_LAST
from lockstep.ledger.what_if import (
    find_straggler,
    saved_by_fewer_checkpoints,
    saved_without_data_waits,
)

__all__ = ["Reason", "duration", "reasons"]

_LEAST_SHARE = 0.01
"""A cost below this share of the time is not worth a sentence."""
_MOST_FAILURES = 3
_SAVING = 0.8
"""A rank whose delays are to this share before reports with a checkpoint is late because of it."""


class Reason(NamedTuple):
    """One cost of a run.

    Attributes:
        account: the account of the ledger.
        share: the account's share of the time of all ranks.
        seconds: the same in wall time.
        saved_s: how much less wall time the run would take without it, by replaying its times.
        text: what happened, with the evidence.
        advice: what to do.
    """

    account: str
    share: float
    seconds: float
    saved_s: float
    text: str
    advice: str


def reasons(ledger: Ledger) -> list[Reason]:
    """What cost time in a run beside computing, the most expensive first."""
    goodput = ledger.goodput
    found = [
        Reason(account, goodput[account], goodput[account] * ledger.wall_s, saved, text, advice)
        for account, explain in _EXPLAIN.items()
        if goodput[account] >= _LEAST_SHARE
        for saved, text, advice in [explain(ledger, goodput)]
    ]
    # A slow rank keeps all others waiting: it costs more than the account in which they wait.
    return sorted(found, key=lambda reason: -max(reason.seconds, reason.saved_s))


def duration(seconds: float) -> str:
    """``180 ms``, ``7.2 s``, ``12 min``, ``3.4 h``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    for limit, divisor, unit in ((100, 1, "s"), (6000, 60, "min")):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"


_Explained = tuple[float, str, str]


def _ranks(ledger: Ledger, goodput: Goodput) -> _Explained:
    straggler = find_straggler(ledger)
    waiting = goodput["ranks"] * ledger.wall_s
    if straggler is None or straggler.last < OFTEN_LAST or straggler.saved_s < 0.4 * waiting:
        often = "" if straggler is None else f" (rank {straggler.rank} most often)"
        saved = 0.0 if straggler is None else straggler.saved_s
        return (
            saved,
            f"Ranks wait for each other {duration(waiting)} on average, and no rank is always the "
            f"last{often}: steps take different times on different ranks at different moments.",
            "Give ranks batches that cost the same (sort or pack by length), look for other "
            "programs on the machines, or report less often.",
        )
    rank, host, last, late_s, saved_s, slower_s, data_s, saving, always_saves = straggler
    text = (
        f"Rank {rank} arrives last at {last:.0%} of reports, {duration(late_s)} after the others; "
        f"if it were as fast as they are, {_less(saved_s, ledger)}."
    )
    if data_s > 0.5 * slower_s:
        return (
            saved_s,
            f"{text} It waits {duration(data_s)} longer for data than the others before a report.",
            f"Look at what rank {rank} reads: its files, its disk, its machine ({host}).",
        )
    if saving > _SAVING and not always_saves:
        return (
            saved_s,
            f"{text} It is late before reports with a checkpoint, and not before the others: it "
            "seems to write the files itself.",
            f"Report a train.State: all ranks write it, while training continues. Else look at "
            f"what only rank {rank} does to save.",
        )
    normal = "Its data waits are normal, its" if data_s > 0 or goodput["data"] else "Its"
    return (
        saved_s,
        f"{text} {normal} compute is slow: {duration(slower_s)} more than the others a report.",
        f"Look at its machine ({host}): other programs, heat, a slower GPU; and at what only rank "
        f"{rank} does{', such as writing the files of each checkpoint' if always_saves else ''}.",
    )


def _data(ledger: Ledger, goodput: Goodput) -> _Explained:
    saved = saved_without_data_waits(ledger)
    most = max(range(len(goodput.ranks)), key=lambda rank: goodput.ranks[rank]["data"])
    share = goodput.ranks[most]["data"]
    whose = f" (rank {most} the most, {share:.0%})" if share > 1.2 * goodput["data"] else ""
    return (
        saved,
        f"Ranks wait {duration(goodput['data'] * ledger.wall_s)} for batches{whose}. If each batch "
        f"were there in time, {_less(saved, ledger)}.",
        "Prefetch more (iter_batches(prefetch_batches=…), DataLoader(num_workers=…)), or make each "
        "row cheaper: map_batches(…, processes=True) uses more cores, a stored dataset needs none.",
    )


def _checkpoint(ledger: Ledger, goodput: Goodput) -> _Explained:
    count = sum(attempt.checkpoints for attempt in ledger.attempts)
    saved = saved_by_fewer_checkpoints(ledger)
    seconds = goodput["checkpoint"] * ledger.wall_s
    text = f"Saving the state took {duration(seconds)}."
    if count > 1:
        each = duration(seconds / count)
        text = (
            f"{count} checkpoints took {duration(seconds)}, {each} each. With half as many "
            f"{_less(saved, ledger)}; a failure would cost twice the work."
        )
    return (
        saved,
        text,
        'Save less often: for a train.State, CheckpointConfig(every="auto") chooses how often. For '
        "files that the function writes itself, pass checkpoint_upload_mode=ASYNC to report(): "
        "training continues while they are copied.",
    )


def _reporting(ledger: Ledger, goodput: Goodput) -> _Explained:
    count = sum(1 for interval in ledger.intervals() if interval.index is not None)
    seconds = goodput["reporting"] * ledger.wall_s
    return (
        seconds,
        f"{count:,} reports were recorded and answered in {duration(seconds)}, "
        f"{duration(seconds / max(count, 1))} each, while all ranks waited.",
        "Report less often, and keep each step's metrics with train.log(), which never waits.",
    )


def _starting(ledger: Ledger, goodput: Goodput) -> _Explained:
    seconds = goodput["starting"] * ledger.wall_s
    return (
        0.0,
        f"The workers took {duration(seconds)} to start: processes, the framework's rendezvous, "
        "imports of the function's modules.",
        "A run pays this once: it matters only in short runs.",
    )


def _restarting(ledger: Ledger, goodput: Goodput) -> _Explained:
    count = len(ledger.attempts) - 1
    seconds = goodput["restarting"] * ledger.wall_s
    times = "once" if count == 1 else f"{count} times"
    return (
        seconds,
        f"The workers were started again {times}, in {duration(seconds)}.",
        "Remove what made attempts end; a wait between two attempts that fail alike is part of it.",
    )


def _lost(ledger: Ledger, goodput: Goodput) -> _Explained:
    failed = [attempt for attempt in ledger.attempts if _lost_s(attempt) > 0]
    failed.sort(key=_lost_s, reverse=True)
    parts = [_lost_in(attempt) for attempt in failed[:_MOST_FAILURES]]
    if len(failed) > _MOST_FAILURES:
        parts.append(f"{len(failed) - _MOST_FAILURES} more attempts lost less.")
    seconds = goodput["lost"] * ledger.wall_s
    return seconds, " ".join(parts), _save_interval(ledger, len(failed))


def _lost_in(attempt: AttemptTimes) -> str:
    again = sum(1 for one in attempt.intervals if one.lost)
    why = f": {attempt.failure.rstrip('.')}" if attempt.failure else ""
    reports = f"{again} report{'' if again == 1 else 's'} after its last checkpoint"
    where = reports if again else "before its next report"
    return f"Attempt {attempt.number} lost {duration(_lost_s(attempt))} of work, {where}{why}."


def _lost_s(attempt: AttemptTimes) -> float:
    rows = sum(interval.seconds for interval in attempt.intervals if interval.lost)
    return rows + attempt.rest.get("lost", 0.0)


def _save_interval(ledger: Ledger, failures: int) -> str:
    """How often to save: by Young's formula, the root of 2 · cost · time between failures."""
    count = sum(attempt.checkpoints for attempt in ledger.attempts)
    if not count:
        return "Report checkpoints: without one, an attempt starts from the beginning."
    cost = 2 * saved_by_fewer_checkpoints(ledger) / count
    every = math.sqrt(2 * cost * ledger.wall_s / max(failures, 1))
    return (
        f"A checkpoint takes {duration(cost)}: with this many failures, one every "
        f"{duration(every)} costs the least. And find out why the attempts failed."
    )


def _idle(ledger: Ledger, goodput: Goodput) -> _Explained:
    seconds = goodput["idle"] * ledger.wall_s
    waited = [rank["idle"] for rank in goodput.ranks]
    last = min(range(len(waited)), key=waited.__getitem__)
    if max(waited) - min(waited) > 0.5 * max(waited):
        return (
            seconds,
            f"After their last report, ranks wait {duration(seconds)} for rank {last}, whose "
            "function returns last.",
            f"Divide among the ranks what rank {last} does after its last report.",
        )
    return (
        seconds,
        f"After the functions had returned, the run took {duration(seconds)} to end: uploads, "
        "trackers, processes that exit.",
        "Close what the function opens, such as loaders with processes of their own.",
    )


def _communication(ledger: Ledger, goodput: Goodput) -> _Explained:
    seconds = goodput["communication"] * ledger.wall_s
    return (
        0.0,
        f"All ranks are in collectives for {duration(seconds)}, waiting for nobody.",
        "Send less or less often: larger batches, gradient accumulation, fewer ranks.",
    )


def _less(saved_s: float, ledger: Ledger) -> str:
    share = saved_s / ledger.wall_s if ledger.wall_s else 0.0
    return (
        f"the run would take {share:.0%} less time ({duration(saved_s)} of "
        f"{duration(ledger.wall_s)})"
    )


_EXPLAIN: dict[str, Callable[[Ledger, Goodput], _Explained]] = {
    "ranks": _ranks,
    "data": _data,
    "checkpoint": _checkpoint,
    "reporting": _reporting,
    "starting": _starting,
    "restarting": _restarting,
    "lost": _lost,
    "idle": _idle,
    "communication": _communication,
}
