"""Names that scripts written for Ray Tune import and that mean little here, or nothing.

What means nothing is accepted with a warning where it is used; what there is no counterpart of says
so when it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.abc import MetaPathFinder
from typing import Any

from lockstep.tune.experiment.replay import Resumption

__all__ = [
    "CLIReporter",
    "JupyterNotebookReporter",
    "ProgressReporter",
    "ResumeConfig",
]

_PACKAGE = "lockstep.tune."


class ProgressReporter:
    """What would print a table of trials. The experiment has a display of its own."""

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
    """Which trials of an experiment to go on with.

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
                "again; begin another experiment."
            )
        if self.unfinished is _ResumeType.RESTART:
            raise ValueError(
                "ResumeConfig(unfinished=RESTART): they go on from their newest checkpoints; use "
                "RESUME or SKIP."
            )

    def resumption(self) -> Resumption:
        """The same, as ``Tuner.restore`` spells it."""
        return Resumption(
            self.unfinished is _ResumeType.RESUME,
            self.errored is _ResumeType.RESUME,
            self.errored is _ResumeType.RESTART,
        )


_OPTUNA = "use lockstep.tune.search.optuna.OptunaSearch, with any sampler of Optuna"
_PB2 = "use PopulationBasedTraining, or OptunaSearch with ASHAScheduler"
_BOHB = "use HyperBandScheduler with OptunaSearch"
_RESIZED = (
    "a trial keeps what it began with; a trainer with ScalingConfig(num_workers=(min, max)) grows "
    "and shrinks"
)
_INSTEAD = {
    "Experiment": "use lockstep.tune.Tuner",
    "run_experiments": "use lockstep.tune.Tuner",
    "register_env": "it belongs to RLlib, which lockstep has no part of",
    "suggest": "use lockstep.tune.search",
    "utils.log": "use RunConfig(verbose=…)",
    "schedulers.PB2": _PB2,
    "schedulers.pb2": _PB2,
    "schedulers.HyperBandForBOHB": _BOHB,
    "schedulers.hb_bohb": _BOHB,
    "schedulers.ResourceChangingScheduler": _RESIZED,
    "schedulers.resource_changing_scheduler": _RESIZED,
    **{
        f"search.{name}": _OPTUNA
        for name in ("ax", "bayesopt", "bohb", "hebo", "hyperopt", "nevergrad", "zoopt")
    },
}


class _Explanations(MetaPathFinder):
    """Asked last for a module, or for a name in a package, that there is not."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> None:
        if fullname.startswith(_PACKAGE):
            advice = _INSTEAD.get(fullname.removeprefix(_PACKAGE))
            if advice is not None:
                raise ImportError(f"{fullname} does not exist: {advice}.", name=fullname)


sys.meta_path.append(_Explanations())
