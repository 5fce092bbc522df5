"""What running a part of a run again has shown, as a value."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Reproduction"]


class Reproduction(NamedTuple):
    """What running a part of a run again has shown.

    Attributes:
        path: the run.
        step: the ``training_iteration`` of the checkpoint that it was run again from; 0: it was run
            again from its beginning.
        steps: how many reports were compared, of every rank, bit by bit.
        states: how many checkpoints were compared, entry by entry.
        difference: the first difference; None if there is none.
    """

    path: str
    step: int
    steps: int
    states: int
    difference: str | None

    @property
    def ok(self) -> bool:
        """Whether everything was the same."""
        return self.difference is None

    def __str__(self) -> str:
        """One sentence."""
        start = f"step {self.step}" if self.step else "the beginning"
        after = f"{self.path}, run again from {start}:"
        if self.difference is not None:
            return f"{after} {self.difference}"
        states = f" and {self.states} checkpoint(s)" if self.states else ""
        return (
            f"{after} {self.steps} report(s) of every rank{states} are the same, bit by bit "
            "(times and speeds are not compared)."
        )
