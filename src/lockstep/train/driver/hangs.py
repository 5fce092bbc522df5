"""Notices that a run makes no progress: while it starts, at a report, between two, or while a
checkpoint is written.

The watch looks at the state now and then: timing each of thousands of reports a second would cost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lockstep.train.driver.events import Phase, Stuck
from lockstep.train.driver.state import RunState

__all__ = ["HangWatch", "Stalled"]

# When no rank waits, only the run's own pace distinguishes a hang from a long step.
# 20 times the longest step so far: an evaluation every few epochs is no hang.
_TIMES_LONGEST = 20
_TIMES_UNKNOWN = 10
"""Before the first report nothing is known of the pace, and a long first epoch is no hang. A user
who sets a timeout has said what a hang is."""
_TIMES_FIRST = 2
"""The time to the first progress includes imports and the first batch, so it says less."""


class Stalled(NamedTuple):
    """A checkpoint that does not reach storage; ``fatal``: it has timed out."""

    name: str
    seconds: float
    doing: str
    fatal: bool


class HangWatch:
    """Remembers the state it saw last. Pure: the caller looks every ``interval_s`` (None: never),
    and passes the time.

    Progress is whatever changes what ``stuck`` compares: a rank that is up, a report, a row of
    ``train.log()``, a rank that returned. A checkpoint on its way has a clock of its own.

    Args:
        warning_s: after this time without progress there is a warning, once. Where no rank waits
            for another, later if the run's own pace is that slow or, without a timeout, unknown.
        timeout_s: after this time without progress the attempt fails.
        storage_s: how long a checkpoint may be on its way.
        start_s: the ``timeout_s`` of the time before every worker is up.
    """

    def __init__(
        self,
        warning_s: float | None,
        timeout_s: float | None,
        storage_s: float | None = None,
        start_s: float | None = None,
    ) -> None:
        self._warning_s = warning_s
        self._timeout_s = timeout_s
        self.storage_s = storage_s
        self._start_s = start_s
        limits = [
            limit for limit in (warning_s, timeout_s, storage_s, start_s) if limit is not None
        ]
        # A quarter: the warning is then at most 25 % late.
        self.interval_s = min(limits) / 4 if limits else None
        self._seen: tuple[Any, ...] = ()
        self._since = 0.0
        self._warned = False
        self._first: float | None = None
        self._longest = 0.0
        self._saving: int | None = None
        self._saving_since = 0.0

    def stuck(self, state: RunState, now: float, logged: int = 0) -> Stuck | None:
        """What to feed the state machine when nothing has happened for too long.

        ``logged``: how many rows ``train.log()`` has sent so far.
        """
        starting = state.phase is Phase.STARTING
        # Cheap to compare, and different whenever something has happened.
        seen = (
            state.attempt,
            state.phase,
            len(state.workers) - state.workers.count(None),
            state.rows,
            state.arrived,
            state.meeting,
            len(state.returned),
            logged,
        )
        one_waits = 0 < state.arrived < state.world_size or bool(state.meeting)
        # Ranks that all wait, wait for storage; so may ranks whose uploads are under way.
        on_storage = not one_waits and (state.arrived > 0 or bool(state.saves))
        if seen != self._seen or on_storage or not (starting or state.phase is Phase.RUNNING):
            self._moved(seen, now)
            return None
        seconds = now - self._since
        timeout_s = self._start_s if starting else self._timeout_s
        if timeout_s is not None and seconds >= timeout_s:
            return Stuck(seconds, fatal=True, warned=self._warned)
        if self._warning_s is None or self._warned:
            return None
        # A rank that waits for another proves a difference between ranks, whatever the pace.
        by_pace = not (starting or one_waits or state.returned)
        pace = max(_TIMES_FIRST * (self._first or 0.0), _TIMES_LONGEST * self._longest)
        if self._first is None and self._timeout_s is None:
            pace = _TIMES_UNKNOWN * self._warning_s
        if seconds < max(self._warning_s, pace if by_pace else 0.0):
            return None
        self._warned = True
        known = max(self._first or 0.0, self._longest)
        return Stuck(seconds, fatal=False, longest=known or None)

    def _moved(self, seen: tuple[Any, ...], now: float) -> None:
        if seen[:2] != self._seen[:2]:  # another attempt, or it has just been launched
            self._first, self._longest = None, 0.0
        elif seen != self._seen:
            # The watch looks every interval_s: a shorter time cannot be measured, and counts as 0.
            quiet_s = now - self._since
            quiet_s = quiet_s if quiet_s > 1.5 * (self.interval_s or 0.0) else 0.0
            if self._first is None:
                self._first = quiet_s
            else:
                self._longest = max(self._longest, quiet_s)
        self._seen, self._since, self._warned = seen, now, False

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
