"""When a reported state is saved: every n reports, after some time, or as often as is worth it."""

from __future__ import annotations

import math

from lockstep.config import CheckpointConfig, seconds_of

__all__ = ["Pace"]

PRIOR_S = 4 * 3600.0
"""How long a run is expected to last without a failure, before anything is known."""
SHARE_OF_WRITING = 0.5
"""How much of the time storage may be busy with states, at most."""


class Pace:
    """Decides when a state is due. The clock is the caller's.

    With ``"auto"`` the time between two saves is Young's: a save that costs ``c`` seconds, in a run
    that fails every ``m`` seconds, is best made every ``sqrt(2 c m)`` seconds. It is never shorter
    than ``c / max_overhead``, nor than twice the time that writing takes.

    Attributes:
        reports: every how many reports a state is saved; 0: this object decides.
    """

    def __init__(
        self, reports: int, interval_s: float | None = None, max_overhead: float = 0.02
    ) -> None:
        self.reports = reports
        self._fixed_s = interval_s
        self._max_overhead = max_overhead
        self._cost_s = 0.0
        self._write_s = 0.0
        self._taken: float | None = None
        self._first: float | None = None
        self._last: float | None = None
        self._failures = 0

    @classmethod
    def of(cls, config: CheckpointConfig) -> Pace:
        """The pace that a user has configured."""
        every = config.every
        if every is None:
            return cls(1)
        if isinstance(every, int):
            return cls(every)
        if every == "auto":
            return cls(0, None, config.max_overhead)
        return cls(0, seconds_of(every))

    def due(self, now: float, *, is_writing: bool = False) -> bool:
        """Whether the state that is reported now is saved.

        ``is_writing``: the state before is not on storage yet, so a save would wait for that. With
        ``"auto"`` no save is worth it.
        """
        if self.reports or (is_writing and self._fixed_s is None):
            return False
        if self._first is None:
            self._first = now
            if self._fixed_s is not None:
                self._last = now
        # The first one at once: what it costs decides when the next one is.
        if self._last is not None and now - self._last < self.interval_s(now):
            return False
        self._last = now
        return True

    def took(self, now: float, seconds: float) -> None:
        """A rank has taken a snapshot; the training function waited so long."""
        if self._taken is None or now - self._taken > 1.0:
            self._cost_s = 0.0
        self._cost_s = max(self._cost_s, seconds)  # of all ranks: they wait for the slowest
        self._taken = now

    def wrote(self, now: float) -> None:
        """The newest snapshot is on storage."""
        if self._taken is not None:
            self._write_s = now - self._taken

    def failed(self) -> None:
        """Workers have failed."""
        self._failures += 1

    def interval_s(self, now: float) -> float:
        """How long after a save the next one is due."""
        if self._fixed_s is not None:
            return self._fixed_s
        ran = 0.0 if self._first is None else now - self._first
        between_failures = (ran + PRIOR_S) / (self._failures + 1)
        cost = max(self._cost_s, 1e-4)
        best = math.sqrt(2 * cost * between_failures)
        return max(best, cost / self._max_overhead, self._write_s / SHARE_OF_WRITING)
