"""Noticing that a run does not move: at a report, or while a checkpoint is written.

Looks at the state now and then, instead of timing each of thousands of reports a second.
"""

from __future__ import annotations

from lockstep.train.events import Stuck
from lockstep.train.state import RunState

__all__ = ["HangWatch"]


class HangWatch:
    """Remembers what it saw last. The caller looks every ``interval_s`` (None: never) and has the
    clock."""

    def __init__(self, warning_s: float | None, timeout_s: float | None) -> None:
        self._warning_s = warning_s
        self._timeout_s = timeout_s
        limits = [limit for limit in (warning_s, timeout_s) if limit is not None]
        self.interval_s = min(limits) / 4 if limits else None
        self._stuck_at: tuple[int, int, bool] | None = None
        self._stuck_since = 0.0
        self._told = False
        self._saving: str | None = None
        self._saving_since = 0.0

    def stuck(self, state: RunState, now: float) -> Stuck | None:
        """Set when some ranks have waited at the same report for too long."""
        here = (state.attempt, state.rows, 0 < state.arrived < state.world_size)
        if here != self._stuck_at or not here[2]:
            self._stuck_at, self._stuck_since, self._told = here, now, False
            return None
        seconds = now - self._stuck_since
        if self._timeout_s is not None and seconds >= self._timeout_s:
            return Stuck(seconds, fatal=True, told=self._told)
        if self._warning_s is not None and seconds >= self._warning_s and not self._told:
            self._told = True
            return Stuck(seconds, fatal=False)
        return None

    def stalled(self, state: RunState, now: float) -> tuple[str, str] | None:
        """A checkpoint that has been under way for too long, and what it waits for.

        Storage that stalls stops nothing by itself, but it should be said.
        """
        save = state.saves[0] if state.saves else None
        name = None if save is None else save.name
        if save is None or name != self._saving:
            self._saving, self._saving_since = name, now
            return None
        seconds = now - self._saving_since
        if self._warning_s is None or seconds < self._warning_s:
            return None
        ranks = ", ".join(map(str, sorted(save.parts_due)))
        doing = f"rank(s) {ranks} still write its files" if ranks else "it is not published yet"
        return save.name, f"since {seconds:.0f} s: {doing}"
