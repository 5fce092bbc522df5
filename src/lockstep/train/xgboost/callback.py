"""XGBoost in a training function: a callback reports each iteration, and the model.

Give ``RayTrainReportCallback()`` to ``xgboost.train(callbacks=[…])``. XGBoost is imported when a
callback is created.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from lockstep.train.boosting.reports import BoosterReporter

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint

__all__ = ["RayTrainReportCallback"]


class RayTrainReportCallback(BoosterReporter):
    """Reports each iteration, with the model as a checkpoint. See ``BoosterReporter``.

    An instance is an ``xgboost.callback.TrainingCallback``.
    """

    default_filename = "model.ubj"

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """An instance of a subclass that also inherits from XGBoost's callback class."""
        own: Any = cls
        return super().__new__(_on_xgboost(own))

    def __reduce__(self) -> tuple[Any, ...]:
        return _recreate, (type(self).__mro__[1], vars(self))

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Report; False: continue."""
        found = {
            f"{data}-{metric}": values[-1][0] if isinstance(values[-1], tuple) else values[-1]
            for data, results in evals_log.items()
            for metric, values in results.items()
        }
        self.report(epoch, found, _save_of(model))
        return False

    def after_training(self, model: Any) -> Any:
        """Save the model."""
        self.end(_save_of(model))
        return model

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str | None = None) -> Any:
        """The ``xgboost.Booster`` in a checkpoint."""
        booster = importlib.import_module("xgboost").Booster()
        with checkpoint.as_directory() as directory:
            booster.load_model(os.path.join(directory, filename or cls.default_filename))
        return booster


def _save_of(model: Any) -> Callable[[str], Any] | None:
    return getattr(model, "save_model", None)  # the models of a cross-validation have none


@cache
def _on_xgboost(cls: Any) -> Any:
    """A subclass that also inherits from XGBoost's callback class."""
    try:
        base = importlib.import_module("xgboost.callback").TrainingCallback
    except ImportError:
        raise ImportError(
            f"{cls.__name__} needs XGBoost; install it: pip install xgboost."
        ) from None
    named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls, base), named)


def _recreate(cls: Any, state: dict[str, Any]) -> Any:
    callback = cls.__new__(cls)
    vars(callback).update(state)
    return callback
