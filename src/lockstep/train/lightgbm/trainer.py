"""LightGBMTrainer: a data-parallel trainer whose workers are connected by LightGBM's sockets."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from lockstep.checkpoint import Checkpoint
from lockstep.train.api import get_checkpoint, get_dataset_shard
from lockstep.train.backend import only_config
from lockstep.train.boosting.trainer import BoostingTrainer
from lockstep.train.lightgbm.callback import RayTrainReportCallback
from lockstep.train.lightgbm.config import LightGBMConfig, get_network_params

__all__ = ["LightGBMTrainer"]


def _train(config: dict[str, Any]) -> None:
    """The training function of a trainer with ``params``."""
    lightgbm = importlib.import_module("lightgbm")
    checkpoint = get_checkpoint()
    model = None if checkpoint is None else RayTrainReportCallback.get_model(checkpoint)
    done = 0 if model is None else model.current_iteration()
    sets: dict[str, Any] = {}
    for name in config["datasets"]:
        frame = get_dataset_shard(name).to_pandas()
        label = frame.pop(config["label_column"])
        options = config["data_arguments"].get(name, {})
        reference = sets.get("train") if name != "train" else None
        sets[name] = lightgbm.Dataset(frame, label=label, reference=reference, **options)
    network = get_network_params()
    shared = {"tree_learner": "data", "pre_partition": True, **network} if network else {}
    arguments = dict(config["train_arguments"])
    report = RayTrainReportCallback(
        frequency=config["frequency"], checkpoint_at_end=config["at_end"]
    )
    lightgbm.train(
        {**shared, **config["params"]},
        sets["train"],
        num_boost_round=max(config["num_boost_round"] - done, 0),
        valid_sets=list(sets.values()),
        valid_names=list(sets),
        init_model=model,
        callbacks=[*arguments.pop("callbacks", ()), report],
        **arguments,
    )


class LightGBMTrainer(BoostingTrainer):
    """Runs a function that calls ``lightgbm.train`` on every worker. See ``BoostingTrainer``.

    Args:
        train_loop_per_worker: the training function; it gives ``get_network_params()`` to
            ``lightgbm.train`` with its own parameters.
        lightgbm_config: how the workers are connected.
        options: see ``BoostingTrainer``; ``dataset_params`` has the arguments of each
            ``lightgbm.Dataset``, by its name.
    """

    _library = "lightgbm"
    _data_arguments = "dataset_params"
    _own_loop = staticmethod(_train)
    _backend_config_class = LightGBMConfig

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any] | None = None,
        *,
        lightgbm_config: LightGBMConfig | None = None,
        **options: Any,
    ) -> None:
        config = only_config(LightGBMConfig, lightgbm_config=lightgbm_config)
        super().__init__(train_loop_per_worker, backend_config=config, **options)

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> Any:
        """The ``lightgbm.Booster`` in a checkpoint."""
        return RayTrainReportCallback.get_model(checkpoint)
