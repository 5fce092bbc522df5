"""A run's work on storage, without a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.config import RunConfig
from lockstep.train.driver.storage_queue import StorageQueue


def test_nothing_is_copied_after_the_end() -> None:
    """The timer of a copy may be due as the run ends, and fire all the same."""
    timers: list[Callable[[], None]] = []
    ended: list[bool] = []
    nothing: Any = None
    queue = StorageQueue(
        nothing, RunConfig(), nothing, lambda _, call: timers.append(call), lambda *_: None
    )
    queue.drain(lambda: ended.append(True))
    queue.sync_regularly()
    assert ended == [True]
    assert not timers
    assert queue._pending() is None
