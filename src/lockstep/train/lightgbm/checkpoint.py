"""LightGBMCheckpoint: a checkpoint with a booster."""

from __future__ import annotations

from typing import Any

from lockstep.train.boosting.reports import BoosterCheckpoint
from lockstep.train.lightgbm.callback import RayTrainReportCallback

__all__ = ["LightGBMCheckpoint"]


class LightGBMCheckpoint(BoosterCheckpoint):
    """A directory with the model of a ``lightgbm.Booster``."""

    MODEL_FILENAME = RayTrainReportCallback.default_filename

    def get_model(self) -> Any:
        """The ``lightgbm.Booster``."""
        return RayTrainReportCallback.get_model(self, self.MODEL_FILENAME)
