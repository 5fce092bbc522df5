"""What ``Callback.get_state`` gives, kept with a run or an experiment until a restore."""

from __future__ import annotations

import os
import pickle
import time
from typing import Any

from lockstep.callback import Callback
from lockstep.run_layout import callback_state_file
from lockstep.trackers.files import replace_file

__all__ = ["CallbackState"]


class CallbackState:
    """One callback's state. ``number`` distinguishes callbacks of the same class.

    Kept after each checkpoint, at the end of a trial and at the end of all, from the callback's own
    thread: what a restored run starts with is usually as new as its checkpoint, older if the
    callback was behind. ``interval_s``: how long to leave it as it is, the last time excepted; what
    comes sooner is postponed.
    """

    def __init__(self, callback: Callback, number: int, interval_s: float = 0.0) -> None:
        self._callback = callback
        self._file = callback_state_file(type(callback).__name__, number)
        self._interval_s = interval_s
        self._not_before = 0.0
        self._postponed: str | None = None
        self.is_used = type(callback).get_state is not Callback.get_state

    @property
    def postponed(self) -> str | None:
        """The directory of what is still to be kept."""
        return self._postponed

    @property
    def wait_s(self) -> float:
        """In how many seconds the state may be kept again."""
        return max(0.0, self._not_before - time.monotonic())

    def keep(self, directory: str, last: bool = False) -> None:
        """Ask for the state and write it, unless it is None."""
        now = time.monotonic()
        if now < self._not_before and not last:
            self._postponed = directory
            return
        self._postponed = None
        self._not_before = now + self._interval_s
        state = self._callback.get_state()
        if state is not None:
            os.makedirs(directory, exist_ok=True)
            replace_file(os.path.join(directory, self._file), [pickle.dumps(state)])

    def give_back(self, directory: str) -> None:
        """Hand the callback what was kept, if anything was."""
        try:
            with open(os.path.join(directory, self._file), "rb") as file:
                state: dict[str, Any] = pickle.load(file)
        except FileNotFoundError:
            return
        self._callback.set_state(state)
