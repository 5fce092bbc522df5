"""LightGBMCheckpoint: a checkpoint with a booster."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

from lockstep.checkpoint import Checkpoint
from lockstep.train.lightgbm.callback import RayTrainReportCallback

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LightGBMCheckpoint"]


class LightGBMCheckpoint(Checkpoint):
    """A directory with the model of a ``lightgbm.Booster``."""

    MODEL_FILENAME = RayTrainReportCallback.default_filename

    @classmethod
    def from_model(cls, booster: Any, *, path: str | os.PathLike[str] | None = None) -> Self:
        """Write the booster to ``path``, a new directory by default, and return the checkpoint."""
        directory = tempfile.mkdtemp(prefix="checkpoint-") if path is None else os.fspath(path)
        os.makedirs(directory, exist_ok=True)
        booster.save_model(os.path.join(directory, cls.MODEL_FILENAME))
        return cls(directory)

    def get_model(self) -> Any:
        """The ``lightgbm.Booster``."""
        return RayTrainReportCallback.get_model(self, self.MODEL_FILENAME)
