"""How long ranks are in collectives between two reports, for the run's ledger.

DDP measures itself: its first ten iterations, then every hundredth. ``measure_collectives`` reads
what it has measured, a few times a second at most, and adds nothing to the iterations themselves.

Everything else that waits for a collective in Python, ``fully_shard`` above all, calls
``Work.wait()``. ``count_waits`` measures that call on CPUs, where it blocks.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lockstep.train.worker import session as sessions

if TYPE_CHECKING:
    import torch

__all__ = ["CollectiveShare", "count_waits", "measure_collectives"]

_PAUSE_S = 0.05
_PAUSES = 1000
"""The pause between two readings, in seconds and in times of what a reading takes: 0.1 % of the
time, however slow the machine is."""
_SAMPLED_EVERY = 100


def measure_collectives(model: torch.nn.Module) -> None:
    """Count the collectives of a DDP ``model`` in what the run's reports say of this rank."""
    session = sessions.current()
    read = getattr(model, "_get_ddp_logging_data", None)  # not public: a torch may be without
    if session is None or read is None:
        return
    share, reference, due = CollectiveShare(), weakref.WeakMethod(read), 0.0

    def count(busy: float) -> None:
        nonlocal due
        now = time.perf_counter()
        if now >= due and (measured := reference()) is not None:
            with suppress(Exception):  # what cannot be measured must not end a run
                share.sample(measured())
            took = time.perf_counter() - now
            due = now + max(_PAUSE_S, min(_PAUSES * took, 1.0))
        if seconds := share.of(busy):
            session.waited("communication", seconds)

    session.before_reports.append(count)


def count_waits() -> Callable[[], None]:
    """Count how long this thread waits in collectives; returns what undoes it.

    Only where tensors are on CPUs. On a GPU the same call returns at once, or waits for what the
    function has computed before.
    """
    import torch.distributed as dist

    thread, clock, ident = threading.get_ident(), time.perf_counter, threading.get_ident
    kind: Any = getattr(dist, "Work", None)
    original: Any = getattr(kind, "wait", None)
    if original is None:
        return lambda: None

    def wait(work: Any, *arguments: Any, **options: Any) -> Any:
        began = clock()
        try:
            return original(work, *arguments, **options)
        finally:
            session = sessions.current()
            # Another thread's collectives, such as those of a background upload, delay no step.
            if session is not None and ident() == thread:
                session.waited("communication", clock() - began)

    try:
        kind.wait = wait
    except (AttributeError, TypeError):  # a torch whose classes cannot be changed
        return lambda: None

    def undo() -> None:
        kind.wait = original

    return undo


class CollectiveShare:
    """The share of an iteration in which only the collectives run, and nothing is computed."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        self._period = 0.0
        self._share = 0.0
        self._idle = 0.0

    def sample(self, measured: Mapping[str, Any]) -> None:
        """What DDP has measured of its last sampled iteration."""
        if "backward_comm_time" not in measured:
            return
        current = int(measured["iteration"]), int(measured["forward_compute_time_start"])
        if self._last is not None and current[0] > self._last[0]:
            self._period = (current[1] - self._last[1]) / (current[0] - self._last[0])
            hidden = measured.get("backward_compute_comm_overlap_time", 0)
            exposed = max(measured["backward_comm_time"] - hidden, 0)
            self._share = min(exposed / self._period, 1.0) if self._period > 0 else 0.0
        if current != self._last:
            self._last, self._idle = current, 0.0

    def of(self, busy: float) -> float:
        """Of these seconds, those in collectives. None where the model has not run for long."""
        self._idle += busy
        if self._idle * 1e9 > 2 * _SAMPLED_EVERY * self._period:
            return 0.0
        return busy * self._share
