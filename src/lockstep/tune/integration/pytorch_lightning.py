"""Lightning in a trial: callbacks that report metrics and checkpoints while ``Trainer.fit`` runs.

``Trainer(callbacks=[TuneReportCheckpointCallback({"loss": "val_loss"})])`` reports Lightning's
``val_loss`` as ``loss``.

The classes inherit from the package in use, as in ``lockstep.train.lightning``: accessing one
imports that package.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from lockstep.train import api
from lockstep.train.boosting.reports import Metrics, MetricsChoice

if TYPE_CHECKING:
    TuneReportCallback: Any
    TuneReportCheckpointCallback: Any

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class _Reporter:
    """Reports Lightning's metrics, and a checkpoint.

    Args:
        metrics: which of ``trainer.callback_metrics``: a name, names, or a dict from the name to
            report to Lightning's; by default all of them.
        filename: the file in the checkpoint.
        save_checkpoints: False: report metrics only.
        on: the name or names of Lightning's hooks at which to report, without ``on_``.
    """

    CHECKPOINT_NAME: str
    _save: Any

    def __init__(
        self,
        metrics: Metrics | None = None,
        filename: str = "checkpoint",
        save_checkpoints: bool = True,
        on: str | Sequence[str] = "validation_end",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self._choice = MetricsChoice(name, metrics)
        self.CHECKPOINT_NAME = filename
        self._saves = save_checkpoints
        for event in [on] if isinstance(on, str) else on:
            if not hasattr(self, f"on_{event}"):
                raise ValueError(
                    f"{name}(on={on!r}): Lightning has no hook on_{event}; expected the name of "
                    "one without 'on_', such as 'validation_end'."
                )
            setattr(self, f"on_{event}", self._report)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Nothing, unless ``on`` names this hook."""

    def _report(self, trainer: Any, *_: Any) -> None:
        found = {name: float(value) for name, value in trainer.callback_metrics.items()}
        metrics = {} if trainer.sanity_checking else self._choice.of(found)
        if metrics:
            checkpoint = self._save(trainer) if self._saves else None
            api.report(
                metrics,
                checkpoint=checkpoint,
                delete_local_checkpoint_after_upload=checkpoint is not None,
            )


class _MetricsReporter(_Reporter):
    """Reports Lightning's metrics, and no checkpoint."""

    def __init__(
        self, metrics: Metrics | None = None, on: str | Sequence[str] = "validation_end"
    ) -> None:
        super().__init__(metrics, save_checkpoints=False, on=on)


_REPORTERS: dict[str, type[_Reporter]] = {
    "TuneReportCheckpointCallback": _Reporter,
    "TuneReportCallback": _MetricsReporter,
}


def __getattr__(name: str) -> Any:
    if name not in _REPORTERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lockstep.train.lightning import LockstepReportCallback

    return _on_lightning(name, LockstepReportCallback)


@cache
def _on_lightning(name: str, base: type) -> type:
    named = {"__module__": __name__, "__doc__": _REPORTERS[name].__doc__}
    return type(name, (_REPORTERS[name], base), named)
