"""The same accounts for a journal that is followed: event by event, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from lockstep.ledger.accounts import ACCOUNTS, interval_after, interval_before, overhead_after

__all__ = ["FollowedLedger"]

_SAVES = 16
"""How many of the last checkpoints a next attempt may start from, in an exact account."""


class FollowedLedger:
    """What ``read_ledger`` would add up to, of all ranks together.

    Every record has to be given once, in the order of the journal. ``began``: the time of the
    run's own record.
    """

    def __init__(self, began: float) -> None:
        self._boundary = began
        self._ended = _Sums()
        """All attempts but the last one."""
        self._last: _Attempt | None = None
        self._is_open = False
        """Whether a record that ends the last attempt may follow."""

    def report(self, row: Mapping[str, Any]) -> None:
        """Add a report."""
        if self._last is not None and self._last.number == row["attempt"]:
            self._last.report(row)

    def event(self, event: str, record: Mapping[str, Any]) -> None:
        """Add a record that begins or ends an attempt or a driver's work; others are ignored."""
        last = self._last
        if event == "restore":
            # Between two drivers nobody worked at the run: that time is in no account.
            self._boundary, self._is_open = float(record["restored"]), False
        elif event == "attempt":
            if last is not None:
                if self._is_open:
                    self._boundary = last.ended
                last.close(self._ended, record["iteration"])
            self._last = _Attempt(record, self._boundary, first=last is None)
            self._is_open = True
        elif last is not None and self._is_open and event in ("failure", "attempt_stopped", "end"):
            last.end(event, record)

    def shares(self, kept: int | None) -> tuple[dict[str, float], float]:
        """The share of each account, and the wall time.

        ``kept``: of a run that failed for good, the iteration that its newest checkpoint has (0
        without one); else None.
        """
        sums = self._ended.copy()
        if self._last is not None:
            self._last.close(sums, kept)
        total = sum(sums.seconds.values())
        shares = {name: s / total if total else 0.0 for name, s in sums.seconds.items()}
        return shares, sums.wall_s


class _Sums:
    """The seconds in each account, of all ranks together."""

    __slots__ = ("seconds", "wall_s")

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(ACCOUNTS, 0.0)
        self.wall_s = 0.0

    def copy(self) -> _Sums:
        other = _Sums()
        other.add(self.seconds)
        other.wall_s = self.wall_s
        return other

    def add(self, seconds: Mapping[str, float]) -> None:
        for account, spent in seconds.items():
            self.seconds[account] += spent


class _Attempt:
    """One attempt so far."""

    __slots__ = (
        "_began", "_elapsed", "_iteration", "_last", "_launched", "_overhead", "_saves", "_size",
        "_start", "_sums", "ended", "number",
    )  # fmt: skip

    def __init__(self, record: Mapping[str, Any], boundary: float, *, first: bool) -> None:
        self.number = record["attempt"]
        self._size = len(record["workers"])
        self._start = self._overhead = "starting" if first else "restarting"
        self._launched = self.ended = float(record["time"])
        self._began = min(boundary, self._launched)
        self._iteration = 0
        self._elapsed = 0.0
        """Seconds from the launch to the last report."""
        self._sums = _Sums()
        nothing = dict(self._sums.seconds)
        self._saves = deque([(record["iteration"], 0.0, nothing)], maxlen=_SAVES)
        """Checkpoints: the iteration, the seconds from the launch, and the sums so far."""
        self._last: Mapping[str, Any] | None = None

    def report(self, row: Mapping[str, Any]) -> None:
        interval = interval_before(row, self._elapsed, self._overhead)
        self._sums.add(interval.total())
        self._elapsed += interval.seconds
        self._iteration = row["iteration"]
        self._overhead = overhead_after(row)
        self.ended = self._launched + self._elapsed
        if row["checkpoint"] is not None:
            self._saves.append((row["iteration"], self._elapsed, dict(self._sums.seconds)))

    def end(self, event: str, record: Mapping[str, Any]) -> None:
        # The record of a failure, or of a notice, says more than the end that may follow it.
        if event == "end" or self._last is None:
            self._last = self._last or record
            self.ended = max(float(record["time"]), self.ended)

    def close(self, sums: _Sums, kept: int | None) -> None:
        """Add this attempt. ``kept``: what it did after this iteration is lost; None: nothing."""
        size = self._size
        sums.wall_s += self.ended - self._began
        sums.add({self._start: (self._launched - self._began) * size})
        if kept is not None and self._iteration > kept:
            saves = [save for save in self._saves if save[0] <= kept] or [self._saves[0]]
            _, elapsed, seconds = saves[-1]
            sums.add(seconds)
            sums.add({"lost": (self._elapsed - elapsed) * size})
        else:
            sums.add(self._sums.seconds)
        if self._last is None:
            return
        end = self.ended - self._launched
        interval = interval_after(self._last, self._elapsed, end, self._overhead)
        if interval is None:
            sums.add({"lost": (end - self._elapsed) * size})
        else:
            sums.add(interval.total())
            sums.add({"idle": (end - self._elapsed - interval.seconds) * size})
