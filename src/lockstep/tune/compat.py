"""Classes that scripts written for Ray Tune use and that have little or no effect here.

A class without effect is accepted, with a warning where it is used. Names that do not exist here at
all are in ``lockstep.missing``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from lockstep.tune.experiment.replay import Resumption

__all__ = [
    "CLIReporter",
    "JupyterNotebookReporter",
    "ProgressReporter",
    "ResumeConfig",
]


class ProgressReporter:
    """Prints a table of trials in Ray Tune. Without effect: the experiment has its own display."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options = arguments, options


class CLIReporter(ProgressReporter):
    """See ``ProgressReporter``."""


class JupyterNotebookReporter(ProgressReporter):
    """See ``ProgressReporter``."""


class _ResumeType(Enum):
    RESUME = "resume"
    RESTART = "restart"
    SKIP = "skip"


@dataclass(frozen=True)
class ResumeConfig:
    """Which trials of an experiment to resume.

    Args:
        finished: always skipped.
        unfinished: resumed or skipped.
        errored: resumed from their newest checkpoints, restarted, or skipped.
    """

    ResumeType = _ResumeType

    finished: _ResumeType = _ResumeType.SKIP
    unfinished: _ResumeType = _ResumeType.RESUME
    errored: _ResumeType = _ResumeType.SKIP

    def __post_init__(self) -> None:
        for name in ("finished", "unfinished", "errored"):
            value = getattr(self, name)
            if not isinstance(value, _ResumeType):
                raise TypeError(f"ResumeConfig({name}={value!r}): expected a ResumeType.")
        if self.finished is not _ResumeType.SKIP:
            raise ValueError(
                f"ResumeConfig(finished={self.finished}): trials that have finished are not run "
                "again; start another experiment."
            )
        if self.unfinished is _ResumeType.RESTART:
            raise ValueError(
                "ResumeConfig(unfinished=RESTART): unfinished trials resume from their newest "
                "checkpoints; use RESUME or SKIP."
            )

    def resumption(self) -> Resumption:
        """The same choice in the terms of ``Tuner.restore``."""
        return Resumption(
            self.unfinished is _ResumeType.RESUME,
            self.errored is _ResumeType.RESUME,
            self.errored is _ResumeType.RESTART,
        )
