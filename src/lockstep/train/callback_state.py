"""What ``Callback.get_state`` gives, kept with the run until a restored one takes it back."""

from __future__ import annotations

import os
import pickle
from typing import Any

from lockstep.callback import Callback
from lockstep.trackers.files import replace_file

__all__ = ["CallbackState"]


class CallbackState:
    """One callback's state in a run. ``number`` tells callbacks of the same class apart.

    Kept after each checkpoint and at the end, from the callback's own thread: what a restored run
    starts with is usually as new as its checkpoint, older if the callback was behind.
    """

    def __init__(self, callback: Callback, number: int) -> None:
        self._callback = callback
        self._file = f"callback_{type(callback).__name__}_{number}.pkl"
        self.is_used = type(callback).get_state is not Callback.get_state

    def keep(self, directory: str) -> None:
        """Ask for the state and write it, unless it is None."""
        state = self._callback.get_state()
        if state is not None:
            replace_file(os.path.join(directory, self._file), [pickle.dumps(state)])

    def give_back(self, directory: str) -> None:
        """Hand the callback what was kept, if anything was."""
        try:
            with open(os.path.join(directory, self._file), "rb") as file:
                state: dict[str, Any] = pickle.load(file)
        except FileNotFoundError:
            return
        self._callback.set_state(state)
