"""TorchTrainer: a data-parallel trainer whose workers share a ``torch.distributed`` group."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lockstep.checkpoint import Checkpoint
from lockstep.config import RunConfig, ScalingConfig
from lockstep.train.backend import only_config
from lockstep.train.protocol import Faults
from lockstep.train.torch.config import TorchConfig
from lockstep.train.trainer import DataParallelTrainer
from lockstep.train.validation import ValidationConfig

if TYPE_CHECKING:
    from lockstep.data import DataConfig, DatasetConfig
    from lockstep.data.preprocessor import Preprocessor

__all__ = ["TorchTrainer"]


class TorchTrainer(DataParallelTrainer):
    """Runs a PyTorch training function on every worker, with the process group initialised.

    Args:
        train_loop_per_worker: the training function, with no argument or one, the config.
        train_loop_config: the argument of the function; ``{}`` by default.
        torch_config: how the process group is set up (``torch_backend`` is its older name).
        scaling_config: the number of workers and their resources; one worker by default.
        run_config: the run's storage, name, failure handling and callbacks.
        datasets: by name; ``get_dataset_shard(name)`` returns a worker's shard.
        dataset_config: how datasets are sharded: a ``DataConfig``, or a ``DatasetConfig`` by name.
        metadata: returned by ``get_context().get_metadata()`` and, what JSON can hold of it, by
            ``get_metadata()`` of every checkpoint that the run uploads.
        preprocessor: fitted on the dataset ``"train"``, applied to all, kept with checkpoints.
        resume_from_checkpoint: returned by ``get_checkpoint()`` at the start.
        validation_config: how ``report(…, validation=True)`` validates a checkpoint.
        fault_plan: for tests: a ``lockstep.testing.FaultPlan`` to inject.
    """

    _backend_config_class = TorchConfig

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        torch_config: TorchConfig | None = None,
        torch_backend: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | Mapping[str, DatasetConfig] | None = None,
        metadata: Mapping[str, Any] | None = None,
        preprocessor: Preprocessor | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        validation_config: ValidationConfig | None = None,
        fault_plan: Faults | None = None,
    ) -> None:
        config = only_config(TorchConfig, torch_config=torch_config, torch_backend=torch_backend)
        if importlib.util.find_spec("torch") is None:
            raise ImportError(
                "TorchTrainer needs PyTorch; install it: pip install 'lockstep-train[torch]'"
            )
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=config,
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            metadata=metadata,
            preprocessor=preprocessor,
            resume_from_checkpoint=resume_from_checkpoint,
            validation_config=validation_config,
            fault_plan=fault_plan,
        )
