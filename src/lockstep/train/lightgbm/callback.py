"""LightGBM in a training function: a callback reports each iteration, and the model.

Give ``RayTrainReportCallback()`` to ``lightgbm.train(callbacks=[…])``. The training function
imports LightGBM.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from lockstep.train.boosting.reports import BoosterReporter

if TYPE_CHECKING:
    from lockstep.checkpoint import Checkpoint

__all__ = ["RayTrainReportCallback"]


class RayTrainReportCallback(BoosterReporter):
    """Reports each iteration, with the model as a checkpoint. See ``BoosterReporter``.

    LightGBM does not report that it stops early: give a ``frequency`` to save the model then.
    """

    default_filename = "model.txt"

    def __call__(self, env: Any) -> None:
        """Report an iteration; called by LightGBM."""
        found: dict[str, Any] = {}
        for data, metric, value, _, *deviation in env.evaluation_result_list:
            if deviation:
                found[f"{data}-{metric}-mean"] = value
                found[f"{data}-{metric}-stdv"] = deviation[0]
            else:
                found[f"{data}-{metric}"] = value
        self.report(env.iteration, found, env.model.save_model)
        if env.iteration == env.end_iteration - 1:
            self.end(env.model.save_model)

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str | None = None) -> Any:
        """The ``lightgbm.Booster`` in a checkpoint."""
        with checkpoint.as_directory() as directory:
            path = os.path.join(directory, filename or cls.default_filename)
            return importlib.import_module("lightgbm").Booster(model_file=path)
