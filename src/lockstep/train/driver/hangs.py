"""Notices that a run makes no progress: at a report, between two, or while a checkpoint is written.

The watch looks at the state now and then: timing each of thousands of reports a second would cost.
"""

from __future__ import annotations

from typing import NamedTuple

from lockstep.train.driver.events import Phase, Stuck
from lockstep.train.driver.state import RunState

__all__ = ["HangWatch", "Stalled"]

# When no rank waits, only the run's own pace distinguishes a hang from a long step.
_KNOWN_REPORTS = 3
_TIMES_WARNING = 4
_TIMES_LONGEST = 20


class Stalled(NamedTuple):
    """A checkpoint that does not reach storage; ``fatal``: it has timed out."""

    name: str
    seconds: float
    doing: str
    fatal: bool


class HangWatch:
    """Remembers the state it saw last. Pure: the caller looks every ``interval_s`` (None: never),
    and passes the time."""

    def __init__(
        self, warning_s: float | None, timeout_s: float | None, storage_s: float | None = None
    ) -> None:
        self._warning_s = warning_s
        self._timeout_s = timeout_s
        self.storage_s = storage_s
        limits = [limit for limit in (warning_s, timeout_s, storage_s) if limit is not None]
        self.interval_s = min(limits) / 4 if limits else None
        self._stuck_at: tuple[int, int, bool] | None = None
        self._stuck_since = 0.0
        self._warned = False
        self._saving: int | None = None
        self._saving_since = 0.0
        self._attempt = 0
        self._rows = (0, 0)
        self._moved = 0.0
        self._longest = 0.0
        self._warned_of_silence = False

    def stuck(self, state: RunState, now: float) -> Stuck | None:
        """What to feed the state machine when ranks have waited too long at the same report."""
        here = (state.attempt, state.rows, 0 < state.arrived < state.world_size)
        if here != self._stuck_at or not here[2]:
            self._stuck_at, self._stuck_since, self._warned = here, now, False
            return None
        seconds = now - self._stuck_since
        if self._timeout_s is not None and seconds >= self._timeout_s:
            return Stuck(seconds, fatal=True, warned=self._warned)
        if self._warning_s is not None and seconds >= self._warning_s and not self._warned:
            self._warned = True
            return Stuck(seconds, fatal=False)
        return None

    def silent(self, state: RunState, now: float) -> tuple[float, float] | None:
        """Set when no rank has reached the next report for much longer than reports took before.

        Returns how long, and the longest time before.
        """
        if state.attempt != self._attempt:
            self._attempt, self._rows = state.attempt, (state.rows, state.rows)
            self._moved, self._longest, self._warned_of_silence = now, 0.0, False
        first, known = self._rows
        quiet_s = now - self._moved
        if state.rows != known or state.arrived or state.saves:
            self._rows, self._moved, self._warned_of_silence = (first, state.rows), now, False
            if known != first:  # the time of the first report includes the start
                self._longest = max(self._longest, quiet_s)
            return None
        patience = max(_TIMES_WARNING * (self._warning_s or 0.0), _TIMES_LONGEST * self._longest)
        enough = known - first >= _KNOWN_REPORTS and state.phase is Phase.RUNNING
        if self._warning_s is None or not enough or self._warned_of_silence or quiet_s < patience:
            return None
        self._warned_of_silence = True
        return quiet_s, self._longest

    def stalled(self, state: RunState, now: float) -> Stalled | None:
        """A checkpoint that has been under way for too long, and what it is waiting for."""
        save = state.saves[0] if state.saves else None
        if save is None or save.id != self._saving:
            self._saving, self._saving_since = None if save is None else save.id, now
            return None
        seconds = now - self._saving_since
        fatal = self.storage_s is not None and seconds >= self.storage_s
        if not fatal and (self._warning_s is None or seconds < self._warning_s):
            return None
        ranks = ", ".join(map(str, sorted(save.parts_due)))
        doing = f"rank(s) {ranks} still write its files" if ranks else "it is not published yet"
        return Stalled(save.name, seconds, doing, fatal)
