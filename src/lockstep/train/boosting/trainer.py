"""What the trainers of boosted trees share: a training function, or the library's parameters."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from lockstep.checkpoint import Checkpoint
from lockstep.config import RunConfig, ScalingConfig
from lockstep.train.backend import BackendConfig
from lockstep.train.trainer import DataParallelTrainer
from lockstep.train.validation import ValidationConfig

if TYPE_CHECKING:
    from lockstep.data import DataConfig, DatasetConfig

__all__ = ["BoostingTrainer"]

_TRAIN = "train"
_ROUNDS = 10


class BoostingTrainer(DataParallelTrainer):
    """Trains boosted trees on every worker, over the library's own collectives.

    Args:
        train_loop_per_worker: the training function, with no argument or one, the config.
        train_loop_config: passed to the function.
        scaling_config, run_config, datasets, dataset_config, metadata, resume_from_checkpoint: as
            in ``DataParallelTrainer``.
        params: the older way, without a function: the parameters of the library's ``train``.
        label_column: with ``params``: the column of the datasets to predict.
        num_boost_round: with ``params``: how many rounds, 10 by default.
        train_arguments: with ``params``: more arguments of the library's ``train``.

    With ``params`` the dataset ``"train"`` is trained on, and all datasets are evaluated;
    ``CheckpointConfig(checkpoint_frequency=…)`` saves the model after every n-th round.
    """

    _library: ClassVar[str]
    _data_arguments: ClassVar[str]
    """What the arguments of the library's datasets are called."""
    _own_loop: ClassVar[Any]
    """The training function where ``params`` are given."""

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any] | None = None,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        backend_config: BackendConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | Mapping[str, DatasetConfig] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        validation_config: ValidationConfig | None = None,
        params: Mapping[str, Any] | None = None,
        label_column: str | None = None,
        num_boost_round: int | None = None,
        **train_arguments: Any,
    ) -> None:
        name = type(self).__name__
        if importlib.util.find_spec(self._library) is None:
            raise ImportError(f"{name} needs {self._library}: pip install {self._library}.")
        if train_loop_per_worker is None:
            if params is None or label_column is None or _TRAIN not in (datasets or {}):
                raise ValueError(
                    f"{name}(): give a training function, or params, label_column and "
                    "datasets={'train': …}."
                )
            run_config = run_config or RunConfig()
            kept = run_config.checkpoint_config
            train_loop_config = {
                "params": dict(params),
                "label_column": label_column,
                "num_boost_round": _ROUNDS if num_boost_round is None else num_boost_round,
                "datasets": list(datasets or {}),
                "frequency": kept.checkpoint_frequency,
                "at_end": kept.checkpoint_at_end is not False,
                "data_arguments": train_arguments.pop(self._data_arguments, None) or {},
                "train_arguments": train_arguments,
            }
            kept = replace(kept, checkpoint_frequency=0, checkpoint_at_end=None)
            run_config = replace(run_config, checkpoint_config=kept)
            train_loop_per_worker = type(self)._own_loop
        elif params is not None or label_column is not None or train_arguments:
            given = {"params": params, "label_column": label_column, **train_arguments}
            unused = next(key for key, value in given.items() if value is not None)
            raise TypeError(
                f"{name}({unused}=…) goes with params and without a training function; with one, "
                "put it into train_loop_config."
            )
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=backend_config,
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            validation_config=validation_config,
        )

    @property
    def config_arguments(self) -> frozenset[str]:
        """Internal: with ``params``, what a ``param_space`` has beside the trainer's configs."""
        if self.train_loop_per_worker is type(self)._own_loop:
            return frozenset(("params", "label_column", "num_boost_round"))
        return frozenset()
