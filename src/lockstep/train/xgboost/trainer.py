"""XGBoostTrainer: a data-parallel trainer whose workers are connected by XGBoost's collective."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from lockstep.checkpoint import Checkpoint
from lockstep.train.api import get_checkpoint, get_dataset_shard
from lockstep.train.backend import only_config
from lockstep.train.boosting.trainer import BoostingTrainer
from lockstep.train.xgboost.callback import RayTrainReportCallback
from lockstep.train.xgboost.config import XGBoostConfig

__all__ = ["XGBoostTrainer"]


def _train(config: dict[str, Any]) -> None:
    """The training function of a trainer with ``params``."""
    xgboost = importlib.import_module("xgboost")
    matrices = {}
    for name in config["datasets"]:
        frame = get_dataset_shard(name).to_pandas()
        label = frame.pop(config["label_column"])
        options = config["data_arguments"].get(name, {})
        matrices[name] = xgboost.DMatrix(frame, label=label, **options)
    checkpoint = get_checkpoint()
    model = None if checkpoint is None else RayTrainReportCallback.get_model(checkpoint)
    done = 0 if model is None else model.num_boosted_rounds()
    arguments = dict(config["train_arguments"])
    report = RayTrainReportCallback(
        frequency=config["frequency"], checkpoint_at_end=config["at_end"]
    )
    xgboost.train(
        config["params"],
        matrices["train"],
        num_boost_round=max(config["num_boost_round"] - done, 0),
        evals=[(matrix, name) for name, matrix in matrices.items()],
        xgb_model=model,
        callbacks=[*arguments.pop("callbacks", ()), report],
        **arguments,
    )


class XGBoostTrainer(BoostingTrainer):
    """Runs a function that calls ``xgboost.train`` on every worker. See ``BoostingTrainer``.

    Args:
        train_loop_per_worker: the training function; its ``xgboost.train`` is distributed.
        xgboost_config: how the workers are connected.
        options: see ``BoostingTrainer``; ``dmatrix_params`` has the arguments of each dataset's
            ``DMatrix``, by its name.
    """

    _library = "xgboost"
    _data_arguments = "dmatrix_params"
    _own_loop = staticmethod(_train)
    _backend_config_class = XGBoostConfig

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any] | None = None,
        *,
        xgboost_config: XGBoostConfig | None = None,
        **options: Any,
    ) -> None:
        config = only_config(XGBoostConfig, xgboost_config=xgboost_config)
        super().__init__(train_loop_per_worker, backend_config=config, **options)

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> Any:
        """The ``xgboost.Booster`` in a checkpoint."""
        return RayTrainReportCallback.get_model(checkpoint)
