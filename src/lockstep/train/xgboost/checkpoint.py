"""XGBoostCheckpoint: a checkpoint with a booster."""

from __future__ import annotations

from typing import Any

from lockstep.train.boosting.reports import BoosterCheckpoint
from lockstep.train.xgboost.callback import RayTrainReportCallback

__all__ = ["XGBoostCheckpoint"]


class XGBoostCheckpoint(BoosterCheckpoint):
    """A directory with the model of a ``xgboost.Booster``."""

    MODEL_FILENAME = RayTrainReportCallback.default_filename

    def get_model(self) -> Any:
        """The ``xgboost.Booster``."""
        return RayTrainReportCallback.get_model(self, self.MODEL_FILENAME)
